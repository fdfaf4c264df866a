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


def undefined(launch, *arguments, **options):
    with meter(undefined_lanes=True) as traffic:
        launch(*arguments, **options)
    return traffic.findings


@triton.jit
def double_kernel(x, y, n, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    if OTHER is None:
        value = tl.load(x + lanes, mask=lanes < n)
    else:
        value = tl.load(x + lanes, mask=lanes < n, other=OTHER)
    tl.store(y + lanes, value * 2)


@triton.jit
def rows_kernel(x, y, rows, columns, HOW: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    mask = (row[:, None] < rows) & (column[None, :] < columns)
    value = tl.load(x + row[:, None] * BLOCK + column[None, :], mask=mask)
    if HOW == "where":
        value = tl.where(mask, value, 0.0)
    if HOW == "max":
        result = tl.max(value, 1)
    elif HOW == "min":
        result = tl.min(value, 1)
    elif HOW == "scan":
        result = tl.sum(tl.cumsum(value, 1), 1)
    elif HOW == "dot":
        ones = tl.full([BLOCK, BLOCK], 1.0, value.dtype)
        result = tl.sum(tl.dot(value, ones), 1)
    elif HOW == "transposed":
        result = tl.sum(value.T, 0)
    else:
        result = tl.sum(value, 1)
    tl.store(y + row, result, mask=row < rows)


REDUCTIONS = ("sum", "max", "min", "scan", "dot", "transposed")


class TestUndefinedLanes:
    def test_a_store_of_lanes_that_no_load_defined(self):
        (finding,) = undefined(double_kernel[(1,)], torch.ones(8), torch.zeros(8), 5, OTHER=None, BLOCK=8)
        assert (finding.kind, finding.argument, finding.program) == ("undefined-lane", "y", (0, 0, 0))
        assert finding.line == line_of(double_kernel, "tl.store")
        load = line_of(double_kernel, "mask=lanes < n)")
        assert f"the load at test_meter_lanes.py:{load}, which has no `other`" in finding.message
        assert "3 lanes in 1 program" in finding.message

    def test_other_defines_them(self):
        assert undefined(double_kernel[(1,)], torch.ones(8), torch.zeros(8), 5, OTHER=0.0, BLOCK=8) == []

    def test_a_full_tile_has_none(self):
        assert undefined(double_kernel[(1,)], torch.ones(8), torch.zeros(8), 8, OTHER=None, BLOCK=8) == []

    def test_is_off_by_default(self):
        assert found(double_kernel[(1,)], torch.ones(8), torch.zeros(8), 5, OTHER=None, BLOCK=8) == []

    @pytest.mark.parametrize(
        ("how", "dtype"),
        [(how, dtype) for how in REDUCTIONS for dtype in (torch.float32, torch.bfloat16)]
        + [(how, torch.int32) for how in REDUCTIONS if how != "dot"],  # tl.dot takes no int32
    )
    def test_a_reduction_over_undefined_columns(self, how, dtype):
        x, y = torch.ones(16, 16, dtype=dtype), torch.zeros(16, dtype=dtype)
        (finding,) = undefined(rows_kernel[(1,)], x, y, 10, 15, HOW=how, BLOCK=16)
        assert "10 lanes" in finding.message

    @pytest.mark.parametrize("how", REDUCTIONS)
    def test_undefined_rows_that_are_not_stored(self, how):
        assert undefined(rows_kernel[(1,)], torch.ones(16, 16), torch.zeros(16), 10, 16, HOW=how, BLOCK=16) == []

    def test_where_replaces_them(self):
        assert undefined(rows_kernel[(1,)], torch.ones(16, 16), torch.zeros(16), 10, 15, HOW="where", BLOCK=16) == []

    @pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
    def test_a_value_that_they_cannot_change_is_defined(self, dtype):
        @triton.jit
        def and_kernel(x, y, n, KEEP: tl.constexpr, BLOCK: tl.constexpr):
            lanes = tl.arange(0, BLOCK)
            value = tl.load(x + lanes, mask=lanes < n)
            inside = lanes < n
            if KEEP:
                inside = lanes < BLOCK
            tl.store(y + lanes, value.to(tl.int32) * inside.to(tl.int32))

        x, y = torch.ones(8, dtype=dtype), torch.zeros(8, dtype=torch.int32)
        assert undefined(and_kernel[(1,)], x, y, 5, KEEP=False, BLOCK=8) == []
        (finding,) = undefined(and_kernel[(1,)], x, y, 5, KEEP=True, BLOCK=8)
        assert "3 lanes" in finding.message

    def test_a_nan_may_come_through_a_product_with_zero(self):
        @triton.jit
        def product_kernel(x, y, n, BLOCK: tl.constexpr):
            lanes = tl.arange(0, BLOCK)
            tl.store(y, tl.sum(tl.load(x + lanes, mask=lanes < n) * (lanes < n).to(tl.float32)))

        assert len(undefined(product_kernel[(1,)], torch.ones(8), torch.zeros(1), 5, BLOCK=8)) == 1

    def test_addresses_masks_and_branches(self):
        @triton.jit
        def table_kernel(table, x, y, n, USE: tl.constexpr, BLOCK: tl.constexpr):
            lanes = tl.arange(0, BLOCK)
            place = tl.load(table + lanes, mask=lanes < n)
            if USE == "address":
                tl.store(y + place % BLOCK, 1.0)
            elif USE == "mask":
                tl.store(y + lanes, 1.0, mask=place > 0)
            elif USE == "masked address":
                tl.store(y + lanes, tl.load(x + place, mask=lanes < n), mask=lanes < n)
            elif USE == "atomic":
                tl.atomic_add(y + lanes, place.to(tl.float32))
            elif tl.sum(place) > 0:
                tl.store(y, 1.0)

        def use(how):
            table = torch.arange(8, dtype=torch.int32)
            findings = undefined(table_kernel[(1,)], table, torch.ones(8), torch.zeros(8), 5, USE=how, BLOCK=8)
            return [each.message.partition(" depends")[0] for each in findings]

        assert use("address") == ["the address of a store (y)"]
        assert use("mask") == ["the mask of a store (y)"]
        assert use("atomic") == ["the value of an atomic operation (y)"]
        assert use("branch") == ["a branch"]
        assert use("masked address") == []

    def test_lanes_end_with_their_program_and_numbers_stay_as_they_are(self):
        @triton.jit
        def blocks_kernel(x, y, n, BLOCK: tl.constexpr):
            lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            value = tl.load(x + lanes, mask=lanes < n)
            value = tl.where(value > 0.5, value, 1.0)
            tl.store(y + tl.program_id(0), tl.sum(tl.exp(value) + 1.0))

        def run(**options):
            with meter(**options) as traffic:
                blocks_kernel[(4,)](torch.ones(32), torch.zeros(4), 12, BLOCK=8)
            return traffic

        followed, plain = run(undefined_lanes=True), run()
        (finding,) = followed.findings
        assert finding.program == (1, 0, 0) and "3 lanes in 3 programs" in finding.message
        assert followed.total == plain.total, "computing again is not counted"

    def test_the_interpreter_is_left_as_it_was(self):
        from triton.runtime import interpreter as triton_interpreter

        owners = (
            triton_interpreter.interpreter_builder, triton_interpreter.interpreter_semantic,
            triton_interpreter.ReduceOps, triton_interpreter.TensorHandle, tl.core.tensor,
        )  # fmt: skip
        before = [dict(vars(owner)) for owner in owners]
        for how in ("sum", "dot", "transposed"):
            undefined(rows_kernel[(1,)], torch.ones(16, 16), torch.zeros(16), 10, 15, HOW=how, BLOCK=16)
        after = [dict(vars(owner)) for owner in owners]
        for state in (*before, *after):
            state.pop("grid_dim", None), state.pop("grid_idx", None)
        assert after == before


def test_a_scalar_zero_is_an_other():
    """Triton's interpreter drops a scalar `other` that is zero."""

    @triton.jit
    def scalar_kernel(x, y, n, OTHER: tl.constexpr):
        place = tl.program_id(0)
        tl.store(y + place, tl.load(x + place, mask=place < n, other=OTHER))

    y = torch.ones(2)
    assert undefined(scalar_kernel[(2,)], torch.ones(1), y, 1, OTHER=0.0) == []
    assert y.tolist() == [1.0, 0.0]
    assert len(undefined(scalar_kernel[(2,)], torch.ones(1), y, 1, OTHER=None)) == 1
    assert y[1].isnan()


class TestAssertions:
    @staticmethod
    @triton.jit
    def lookup_kernel(places, table, out, size, n, MASKED: tl.constexpr, BLOCK: tl.constexpr):
        lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        place = tl.load(places + lanes, mask=lanes < n, other=-1)
        if MASKED:
            tl.device_assert(place >= 0, "no such row", mask=lanes < n)
        else:
            tl.device_assert((place >= 0) & (place < size), "no such row")
        tl.store(out + lanes, tl.load(table + place, mask=(place >= 0) & (place < size), other=0.0), mask=lanes < n)

    def look_up(self, places, n, **options):
        out = torch.zeros(8)
        places = torch.tensor(places, dtype=torch.int32)
        return found(self.lookup_kernel[(2,)], places, torch.ones(4), out, 4, n, BLOCK=4, **options), out

    def test_are_reported_with_line_program_and_message_and_the_kernel_goes_on(self):
        findings, out = self.look_up([0, 1, 2, 3, 0, 4, -1, 9], 8, MASKED=False)
        (finding,) = findings
        assert (finding.kind, finding.program, finding.argument) == ("failed-assert", (1, 0, 0), "")
        assert finding.line == line_of(self.lookup_kernel, '(place < size), "no such row"')
        assert finding.message.startswith("tl.device_assert failed: no such row; 3 lanes in 1 program; ")
        assert out.tolist() == [1.0] * 5 + [0.0] * 3

    def test_that_hold_say_nothing(self):
        assert self.look_up([0, 1, 2, 3, 3, 2, 1, 0], 8, MASKED=False)[0] == []

    def test_masked_lanes_are_not_checked(self):
        assert self.look_up([0, 1, 2, 3, 3, 2, 1, 0], 6, MASKED=True)[0] == []
        assert len(self.look_up([0, 1, 2, 3, 3, -1, 1, 0], 6, MASKED=True)[0]) == 1

    def test_of_a_scalar_without_a_message(self):
        @triton.jit
        def first_kernel(out):
            tl.device_assert(tl.program_id(0) == 0)
            tl.store(out + tl.program_id(0), 1.0)

        (finding,) = found(first_kernel[(3,)], torch.zeros(3))
        assert finding.message.startswith("tl.device_assert failed; 2 lanes in 2 programs; ")
