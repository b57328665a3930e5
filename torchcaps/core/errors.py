"""The one exception that is meant for the person at the keyboard."""


class UserError(ValueError):
    """Bad input: one line that says what is wrong and what would be right. The command line exits with code 2."""
