"""Single lanes: conflicts within one store, failing assertions, and lanes that a load left undefined."""

import inspect

import pytest
import torch
from threeloops.inner import interpreter

interpreter.enable_without_gpu()

import triton
import triton.language as tl
from threeloops.inner.meter import meter

pytestmark = pytest.mark.skipif(
    not interpreter.interpreted(),
    reason="the meter counts what Triton's interpreter executes; kernels are compiled here",
)


def found(launch, *arguments, **options):
    with meter() as traffic:
        launch(*arguments, **options)
    return traffic.findings


def line_of(kernel, text):
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(number for number, line in enumerate(lines) if text in line)


@triton.jit
def scatter_kernel(values, places, out, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    place = tl.load(places + lanes, mask=lanes < n, other=0)
    value = tl.load(values + lanes, mask=lanes < n, other=0.0)
    tl.store(out + place, value, mask=lanes < n)


class TestConflictsWithinOneStore:
    def scatter(self, values, places, lanes=8, dtype=torch.float32):
        values, places = torch.tensor(values, dtype=dtype), torch.tensor(places)
        return found(scatter_kernel[(1,)], values, places, torch.zeros(8, dtype=dtype), lanes, BLOCK=8)

    def test_different_values_at_one_address(self):
        (finding,) = self.scatter([1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 5, 4, 5, 6, 5])
        assert (finding.kind, finding.argument, finding.program) == ("store-conflict", "out", (0, 0, 0))
        assert finding.line == line_of(scatter_kernel, "tl.store")
        assert "different values to element 5 of out" in finding.message and "3 lanes in 1 program" in finding.message

    def test_equal_values_are_the_same_in_any_order(self):
        assert self.scatter([1, 2, 3, 4, 5, 4, 7, 8], [0, 1, 2, 5, 4, 5, 6, 7]) == []
        assert self.scatter([float("nan")] * 8, [0] * 8) == []

    def test_one_different_lane_of_several_is_enough(self):
        (finding,) = self.scatter([1, 1, 1, 2, 5, 6, 7, 8], [0, 0, 0, 0, 4, 5, 6, 7])
        assert "4 lanes" in finding.message

    def test_masked_lanes_store_nothing(self):
        assert self.scatter([1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 3, 3, 3, 3, 3], lanes=4) == []

    def test_every_value_of_a_type_is_compared_bit_by_bit(self):
        assert self.scatter([0.0, -0.0, 3, 4, 5, 6, 7, 8], [0, 0, 2, 3, 4, 5, 6, 7]) != []
        assert self.scatter([1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 2, 3, 4, 5, 6, 7], dtype=torch.bfloat16) != []

    def test_the_order_of_two_stores_is_defined(self):
        @triton.jit
        def twice_kernel(out):
            tl.store(out, 1.0)
            tl.store(out, 2.0)

        assert found(twice_kernel[(1,)], torch.zeros(1)) == []

    def test_atomics_may_meet(self):
        @triton.jit
        def add_kernel(out, BLOCK: tl.constexpr):
            tl.atomic_add(out + tl.zeros([BLOCK], tl.int32), tl.arange(0, BLOCK).to(tl.float32))

        assert found(add_kernel[(1,)], torch.zeros(1), BLOCK=8) == []
