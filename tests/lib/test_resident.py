"""The memory of other processes, as the kernel tells it."""

import mmap
import os
import signal
import sys

import pytest
import torch  # noqa: F401  (its library has hundreds of MiB)
from threeloops.resident import ResidentMemory, own_bytes, settle

MB = 1 << 20


def take(megabytes):
    """Fresh pages, whatever free memory the fork inherited."""
    pages = mmap.mmap(-1, megabytes * MB)
    for place in range(0, len(pages), mmap.PAGESIZE):
        pages[place] = 1
    return pages


class Child:
    """A fork that settles and then executes what it is told, line by line."""

    def __init__(self, **names):
        self._said, told = os.pipe()
        heard, self._tell = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(self._tell)
            settle()
            names |= {"told": told, "take": take}
            with os.fdopen(heard) as lines:
                os.write(told, b"\0")
                for line in lines:
                    exec(line, names)
                    os.write(told, b"\0")
            os._exit(0)
        os.close(heard)
        os.close(told)
        assert os.read(self._said, 1)

    def do(self, line):
        os.write(self._tell, f"{line}\n".encode())
        assert os.read(self._said, 1)

    def end(self):
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self._tell)
        os.close(self._said)


@pytest.fixture
def children():
    found = [Child(), Child()]
    yield found
    for child in found:
        child.end()


def test_each_process_has_its_own_largest_growth(children):
    memory = ResidentMemory([child.process for child in children])
    assert max(memory.growth()) < MB
    children[0].do("kept = take(8)")
    children[1].do("kept = take(3)")
    assert [abs(found - expected) < MB for found, expected in zip(memory.growth(), (8 * MB, 3 * MB), strict=True)]
    children[0].do("del kept")
    children[0].do("kept = take(4)")
    assert abs(memory.growth()[0] - 8 * MB) < MB, "the largest, and given back in between"
    children[0].do("more = take(10)")
    assert abs(memory.growth()[0] - 14 * MB) < MB


def test_what_a_process_had_before_does_not_count(children):
    children[0].do("kept = take(8)")
    memory = ResidentMemory([children[0].process])
    children[0].do("kept = kept[:2 << 20]")
    assert memory.growth()[0] < 3 * MB


@pytest.mark.parametrize(("megabytes", "counted"), [(12, 0), (40, 24)])
def test_pages_of_the_parent_that_a_process_writes_to_count_above_16_mib(megabytes, counted):
    """Each replaces the one that it shared."""
    shared = bytearray(b"x" * (megabytes * MB))
    child = Child(shared=shared)
    try:
        memory = ResidentMemory([child.process])
        child.do("for place in range(0, len(shared), 4096): shared[place] = 1")
        assert abs(memory.growth()[0] - counted * MB) < 2 * MB
    finally:
        child.end()


def test_libraries_do_not_count_when_another_process_that_had_them_ends():
    child, other = Child(), Child()
    try:
        memory = ResidentMemory([child.process])
        other.end()
        assert memory.growth()[0] < MB
    finally:
        child.end()


def test_memory_that_is_shared_with_the_parent_counts_when_it_is_used():
    pages = mmap.mmap(-1, 8 * MB)
    pages.write(b"x" * len(pages))
    child = Child(pages=pages)
    try:
        memory = ResidentMemory([child.process])
        child.do("for place in range(0, len(pages), 4096): pages[place] = 1")
        assert abs(memory.growth()[0] - 8 * MB) < MB
    finally:
        child.end()


def test_a_process_that_has_ended_is_named(children):
    memory = ResidentMemory([children[0].process])
    assert memory.processes == [children[0].process]
    os.kill(children[0].process, signal.SIGKILL)
    os.waitid(os.P_PID, children[0].process, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessLookupError, match=f"process {children[0].process} has ended"):
        memory.growth()
    with pytest.raises(ProcessLookupError):
        ResidentMemory([children[0].process])


def test_a_name_that_a_process_chooses_is_no_field_of_its_status(children):
    memory = ResidentMemory([children[0].process])
    children[0].do("import ctypes; ctypes.CDLL(None).prctl(15, b'VmHWM:\\n1 kB', 0, 0, 0)")
    children[0].do("kept = take(8)")
    assert abs(memory.growth()[0] - 8 * MB) < MB


def test_another_program_has_forgotten_what_the_one_before_took(children):
    children[0].do("kept = take(64)")
    memory = ResidentMemory([children[0].process])
    program = "import os; os.write(1, b'0'); import time; time.sleep(1000)"
    children[0].do(f"import os; os.dup2(told, 1); os.execl({sys.executable!r}, {sys.executable!r}, '-Sc', {program!r})")
    with pytest.raises(ProcessLookupError, match="has become another program"):
        memory.growth()


def test_what_is_a_processs_own_leaves_out_its_files(children):
    before = own_bytes(children[0].process)
    children[0].do("kept = take(8)")
    assert abs(own_bytes(children[0].process) - before - 8 * MB) < MB
