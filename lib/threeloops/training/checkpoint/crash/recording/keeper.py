"""The keeper of a record. It records operations, and decides which writes and fsyncs of the disk fail."""

from threeloops.training.checkpoint.crash.model.operations import Operation, Record, Sync, SyncAll, Write
from threeloops.training.checkpoint.crash.recording.failures import Failure

__all__ = ["Keeper"]


class Keeper:
    """Keeps the record of a disk that may fail. The recorder that calls it may be in another process."""

    def __init__(self, record: Record, fail: Failure) -> None:
        self.record = record
        self.fail = fail
        self._lost = set[int]()
        """Numbers of files of which an fsync failed: Linux takes their data for written, and a later fsync writes none
        of it, though it succeeds (Rebello et al. 2020). So those that follow are not written down."""

    def add(self, operation: Operation) -> None:
        """Record an operation that is neither a write nor an fsync."""
        self.record.operations.append(operation)

    def write(self, operation: Write) -> int:
        """Record as much of a write as the disk takes, and return how many bytes that is. Raises OSError if it takes
        none."""
        count = self.fail.bytes_taken(len(operation.data))
        if count:
            self.add(Write(operation.file, operation.path, operation.offset, operation.data[:count]))
        return count

    def sync(self, operation: Sync | SyncAll) -> None:
        """Record an fsync. Raises OSError if it fails."""
        number = operation.inode if isinstance(operation, Sync) else None
        try:
            self.fail.before_sync()
        except OSError:
            if number is not None:
                self.lose(number)
            raise
        concerned = self._lost if number is None else self._lost & {number}
        if not concerned:
            self.add(operation)

    def lose(self, number: int) -> None:
        """Record that an fsync of this file has failed."""
        self._lost.add(number)
