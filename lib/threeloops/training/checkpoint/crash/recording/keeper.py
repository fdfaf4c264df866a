"""The keeper of a record: it writes operations down, and decides how the disk takes writes and fsyncs."""

from threeloops.training.checkpoint.crash.model.operations import Operation, Record, Sync, SyncAll, Write
from threeloops.training.checkpoint.crash.recording.failures import Failure

__all__ = ["Keeper"]


class Keeper:
    """Keeps the record of a disk that may fail. It may live in another process than the recorder that tells it."""

    def __init__(self, record: Record, fail: Failure) -> None:
        self.record, self.fail = record, fail
        self._lost = set[int]()
        """Numbers of files of which an fsync failed: Linux takes their data for written, and a later fsync writes none
        of it, though it succeeds (Rebello et al. 2020). So those that follow are not written down."""

    def add(self, operation: Operation) -> None:
        """Write down an operation that neither writes nor syncs."""
        self.record.operations.append(operation)

    def write(self, operation: Write) -> int:
        """Write down as much of it as the disk takes, and return how many bytes that is. Raises OSError where it takes
        none."""
        count = self.fail.bytes_taken(len(operation.data))
        if count:
            self.add(Write(operation.file, operation.path, operation.offset, operation.data[:count]))
        return count

    def sync(self, operation: Sync | SyncAll) -> None:
        """Write down an fsync. Raises OSError where it fails."""
        number = operation.inode if isinstance(operation, Sync) else None
        try:
            self.fail.before_sync()
        except OSError:
            if number is not None:
                self.lose(number)
            raise
        if number not in self._lost if number is not None else not self._lost:
            self.add(operation)

    def lose(self, number: int) -> None:
        """An fsync of this file has failed."""
        self._lost.add(number)
