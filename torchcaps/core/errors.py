"""The exception for wrong input by a user."""


class UserError(ValueError):
    """Wrong input: one line that says what is wrong and what would be right. The command line exits with code 2."""
