"""What file systems promise about a crash, as data, with the sources.

- fsync(2): "Calling fsync() does not necessarily ensure that the entry in the directory containing the file has also
  reached disk. For that an explicit fsync() on a file descriptor for the directory is also needed." `POSIX` takes it at
  its word: nothing is durable that was not synced itself, and what is pending may arrive in any order. What Pillai et
  al. 2014, "All File Systems Are Not Created Equal" (OSDI), section 3 and table 1, call persistence properties are the
  ways in which real file systems are better than that, each in its own.
- ext4, kernel documentation, admin-guide/ext4, Options. data=ordered: "All data are forced directly out to the main
  file system prior to its metadata being committed to the journal", so a file that grew shows no bytes that were not
  written; with delayed allocation it may still be as short as before. auto_da_alloc: where a file replaces another by
  rename, its data goes to the disk with the commit of that rename.
- XFS, kernel documentation, filesystems/xfs/xfs-delayed-logging-design: metadata go through one log, in order. The
  size on disk grows when the I/O at the new end is complete (commit ba87ea699ebd, "Fix to prevent the notorious 'NULL
  files' problem after a crash", 2007); there is no rule for renames, so a file may be empty under its new name.

In both journals an fsync commits all metadata up to the last operation on what it is called for; what else lies in the
same transaction is luck. (In "Documenting the crash-recovery guarantees of Linux file systems", linux-fsdevel, March
2019, the authors of CrashMonkey, OSDI 2018, propose to write such promises down; they are not part of the kernel's
documentation.) A save should be right under POSIX: the others show what one gets away with, and where.
"""

from dataclasses import dataclass

__all__ = ["EXT4", "POSIX", "XFS", "Rules"]


@dataclass(frozen=True)
class Rules:
    """What a file system promises about a crash. `POSIX` promises least."""

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
