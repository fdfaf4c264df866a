"""Run a program of a lab that uses a student's asynchronous functions, in virtual time, from a test.

Behind the wall, the program runs on the grader's side, on a loop that keeps the time; only the student's functions run
in the sandbox. `docs/design/virtual_time.md` says why.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.lab.checking.in_virtual_time.program import in_virtual_time, there
else:
    import_on_demand(__name__)

__all__ = ["in_virtual_time", "there"]
