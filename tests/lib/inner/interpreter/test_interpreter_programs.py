"""Programs of a launch run one after another, and launches one at a time."""

import threading
from pathlib import Path

import pytest
import threeloops.inner
import torch
import triton
import triton.language as tl
from threeloops.inner.interpreter.stack import kernel_line
from threeloops.inner.meter import meter  # switches on the interpreter
from triton.runtime.errors import InterpreterError


@triton.jit
def wait_for_the_next(flag, out):
    if tl.program_id(0) == 0:
        while tl.atomic_add(flag, 0) == 0:
            pass
        tl.store(out, 1.0)
    else:
        tl.atomic_xchg(flag, 1)


@triton.jit
def wait_with_loads(flag, out):
    if tl.program_id(0) == 0:
        while tl.load(flag, volatile=True) == 0:
            pass
    else:
        tl.store(flag, 1)


@triton.jit
def wait_with_cas(lock, out):
    if tl.program_id(0) == 0:
        while tl.atomic_cas(lock, 1, 2) != 1:
            pass
    else:
        tl.store(lock, 1)


@pytest.mark.parametrize("kernel", [wait_for_the_next, wait_with_loads, wait_with_cas])
def test_a_program_that_waits_for_a_later_one_ends_with_its_line(kernel):
    line = kernel.fn.__code__.co_firstlineno + 3
    with pytest.raises(InterpreterError, match=rf"program \(0, 0, 0\) waits at line {line} of {kernel.__name__} for a"):
        kernel[(2,)](torch.zeros(1, dtype=torch.int32), torch.zeros(1))


@pytest.mark.parametrize(("room", "is_machinery"), [("kernels", False), ("interpreter", True), ("meter", True)])
def test_kernels_of_the_library_are_kernels_and_the_bench_is_not(room, is_machinery):
    """A message must name the line of a kernel, also of one that stands in this library."""
    names = {"kernel_line": kernel_line}
    file = Path(threeloops.inner.__path__[0]) / room / "some.py"
    exec(compile("def some():\n    return kernel_line()\n", file, "exec"), names)
    assert (names["some"]() == "line 2 of some") != is_machinery


@triton.jit
def take_a_ticket(ticket, out, COUNT: tl.constexpr):
    """A counter that moves, and a flag that an earlier program has set, are no endless wait."""
    mine = tl.atomic_add(ticket, 1)
    while tl.atomic_add(ticket, 0) <= mine:
        pass
    for _ in range(COUNT):
        tl.store(out + mine, tl.load(out + mine) + 1)


def test_waiting_for_earlier_programs_is_no_endless_wait():
    ticket, out = torch.zeros(1, dtype=torch.int32), torch.zeros(3)
    take_a_ticket[(3,)](ticket, out, COUNT=300)
    assert ticket.item() == 3
    assert out.tolist() == [300.0] * 3


@triton.jit
def add(x, y, out, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


def test_threads_launch_one_after_another():
    x, y = torch.randn(1000), torch.randn(1000)
    outs = [torch.empty(1000) for _ in range(6)]
    threads = [threading.Thread(target=lambda out=out: add[(32,)](x, y, out, 1000, SIZE=32)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(torch.equal(out, x + y) for out in outs)


def test_a_meter_counts_each_launch_of_several_threads():
    x, y = torch.randn(1000), torch.randn(1000)
    outs = [torch.empty(1000) for _ in range(6)]
    threads = [threading.Thread(target=lambda out=out: add[(32,)](x, y, out, 1000, SIZE=32)) for out in outs]
    with meter() as traffic:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert all(torch.equal(out, x + y) for out in outs)
    assert [launch.unique_bytes for launch in traffic.launches] == [12_000] * 6
