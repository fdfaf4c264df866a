"""Promises that file systems make about a crash, as data, with their sources.

- fsync(2): "Calling fsync() does not necessarily ensure that the entry in the directory containing the file has also
  reached disk. For that an explicit fsync() on a file descriptor for the directory is also needed." `POSIX` takes this
  literally: nothing is durable unless it was synced itself, and pending operations may reach the disk in any order.
  Real file systems promise more, each in its own way. Pillai et al. 2014, "All File Systems Are Not Created Equal"
  (OSDI), section 3 and table 1, call these promises persistence properties.
- ext4, kernel documentation, admin-guide/ext4, Options. data=ordered: "All data are forced directly out to the main
  file system prior to its metadata being committed to the journal". So a file that grew shows no bytes that were not
  written, but with delayed allocation it may still have its old size. auto_da_alloc: if a rename replaces a file, the
  data of the new file goes to the disk when the rename is committed.
- XFS, kernel documentation, filesystems/xfs/xfs-delayed-logging-design: metadata go through one log, in order. The
  size on disk grows when the I/O at the new end is complete (commit ba87ea699ebd, "Fix to prevent the notorious 'NULL
  files' problem after a crash", 2007). There is no rule for renames, so a file may be empty under its new name.

In both journals an fsync commits all metadata up to the last operation on its file or folder. Anything else in the same
transaction is luck. (In "Documenting the crash-recovery guarantees of Linux file systems", linux-fsdevel, March 2019,
the authors of CrashMonkey, OSDI 2018, propose to write such promises down. The kernel's documentation does not have
them.) A save should be right under POSIX. The other rules show which mistakes a file system forgives.
"""

from dataclasses import dataclass

__all__ = ["EXT4", "POSIX", "XFS", "Rules"]


@dataclass(frozen=True)
class Rules:
    """The promises of a file system about a crash. `POSIX` promises the least."""

    name: str
    journal: bool = False
    """Operations on names, and cuts of files, get to the disk in their order, and an fsync commits them up to the last
    one that concerns its file or folder."""
    growth: str = "any"
    """The moment from which a file may show a new size: at "any" time (zeros stand for missing data), after the data at
    its "end", or after "all" appended data below it."""
    replacing_flushes: bool = False
    """A rename over a file is not on disk before the data of the file that it moves."""
    sector: int = 512
    """Bytes that are written whole or not at all."""


POSIX = Rules("POSIX")
EXT4 = Rules("ext4", journal=True, growth="all", replacing_flushes=True)
XFS = Rules("XFS", journal=True, growth="end")
