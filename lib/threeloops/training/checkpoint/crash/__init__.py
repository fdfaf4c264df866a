"""Crash states: the contents of a disk that a power cut during a save may leave, and whether they can be loaded.

A killed process loses nothing that it wrote, because the kernel still has it. A power cut may take everything that was
not synced: all of it, some of it, a rename but not the data, or the data but not the name. This package records every
operation of a save, lists all states that a crash may leave, and loads each of them.

>>> with recording(folder) as recorder:
...     save(folder, state)
>>> report = check(recorder.record, load)
>>> assert report.ok, report

The method is that of ALICE (Pillai et al. 2014, "All File Systems Are Not Created Equal", OSDI), for saves in Python.
It works on the calls that a program makes, under stated rules of file systems, so it needs neither a disk nor a kernel
of its own. CrashMonkey (Mohan et al. 2018, "Finding Crash-Consistency Bugs with Bounded Black-Box Crash Testing", OSDI)
records below the file system instead, in order to test the file system.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.checkpoint.crash.draw import draw_crash
    from threeloops.training.checkpoint.crash.explore import Report, check
    from threeloops.training.checkpoint.crash.model.operations import BadRecord, Record
    from threeloops.training.checkpoint.crash.model.rules import EXT4, POSIX, XFS, Rules
    from threeloops.training.checkpoint.crash.model.states import CrashStates, State, crash_states
    from threeloops.training.checkpoint.crash.recording.failures import DiskFull, ShortWrites, SyncFails
    from threeloops.training.checkpoint.crash.recording.record import Escaped, recording
    from threeloops.training.checkpoint.crash.strace.run import record_save, strace_works
else:
    import_on_demand(__name__)

__all__ = [
    "EXT4", "POSIX", "XFS", "BadRecord", "CrashStates", "DiskFull", "Escaped", "Record", "Report", "Rules",
    "ShortWrites", "State", "SyncFails", "check", "crash_states", "draw_crash",
    "record_save", "recording", "strace_works",
]  # fmt: skip
