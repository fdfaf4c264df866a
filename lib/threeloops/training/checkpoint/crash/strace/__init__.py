"""Recording of system calls with strace, which sees native code too."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.checkpoint.crash.strace.run import record_save, strace_works
else:
    import_on_demand(__name__)

__all__ = ["record_save", "strace_works"]
