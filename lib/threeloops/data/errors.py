"""The errors that reading and loading samples can raise."""

__all__ = ["CorruptData", "MissingIndex", "WorkerDied", "WorkerFailed"]


class CorruptData(ValueError):
    """A file does not follow its format. The message names the file, the place in it, and what was expected.

    A single argument is the message itself, so that PyTorch's DataLoader can make the error again from its worker's.
    """

    def __init__(self, file: object, place: str = "", wrong: str = "") -> None:
        super().__init__(f"{file}, {place}: {wrong}" if place else str(file))
        self.file = str(file)
        self.place = place
        self.wrong = wrong

    def __reduce__(self):
        return CorruptData, (self.file, self.place, self.wrong)


class MissingIndex(FileNotFoundError):
    """A folder of shards has lost the file that says which shards belong to it."""


class WorkerFailed(RuntimeError):
    """A worker's load raised an exception, which is `__cause__`. The message names the worker and the sample."""


class WorkerDied(RuntimeError):
    """A worker process ended without an answer: killed, out of memory, or crashed in C."""
