"""An answer that tells a client what is wrong with its request."""


class Refused(Exception):
    """A 4xx answer. The message is fixed text: nothing of the request or of this machine is repeated in it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message
