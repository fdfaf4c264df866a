"""The memory of a submission's process, as its monitor reads it."""

import ctypes
import os
import signal

import pytest
from threeloops_grader.processes.student_process import _read

_PR_SET_DUMPABLE = 4
_NOBODY = 65534


def as_a_user() -> None:
    if os.geteuid() == 0:  # who may read everything
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


@pytest.mark.parametrize(("shown", "found"), [(1, "({}, [b'hello'])"), (0, "({}, [])")])
def test_a_process_that_hides_its_memory_has_none_to_show(shown, found):
    """If the monitor said that the machine refuses to read it, the run of the whole class would end."""
    text, (reading, writing) = ctypes.create_string_buffer(b"hello"), os.pipe()
    submission = os.fork()
    if submission == 0:
        as_a_user()
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, shown, 0, 0, 0)
        os.write(writing, b"!")
        signal.pause()
    assert os.read(reading, 1) == b"!"
    monitor = os.fork()
    if monitor == 0:
        as_a_user()
        os.write(writing, repr(_read(submission, ctypes.addressof(text), 5)).encode())
        os._exit(0)
    os.waitpid(monitor, 0)
    os.kill(submission, signal.SIGKILL)
    os.waitpid(submission, 0)
    assert os.read(reading, 1000).decode() == found
