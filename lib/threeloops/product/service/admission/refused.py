"""The answer to a refused request."""

__all__ = ["Refused"]


class Refused(Exception):
    """A refused request. `status`, `code`, `message` and `param` go into OpenAI's error format, and `retry_after`
    (seconds, or None if trying again does not help) into the header of that name.
    """

    def __init__(
        self, status: int, code: str, message: str, retry_after: float | None = None, param: str | None = None
    ):
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.param = param
