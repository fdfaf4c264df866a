"""Records system calls, so that native code is seen too."""

from threeloops.training.checkpoint.crash.strace.run import record_save, strace_works

__all__ = ["record_save", "strace_works"]
