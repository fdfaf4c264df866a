"""Recording of system calls with strace, which sees native code too."""

from threeloops.training.checkpoint.crash.strace.run import record_save, strace_works

__all__ = ["record_save", "strace_works"]
