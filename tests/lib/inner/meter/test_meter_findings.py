"""Out-of-bounds accesses, reads of unwritten memory and races: found, named, and not found in ordinary code."""

import inspect

import numpy as np
import pytest
import torch
from threeloops.inner import interpreter
from threeloops.inner.meter.findings import unwritten as meter_unwritten

interpreter.enable_without_gpu()

import triton
import triton.language as tl
from threeloops.inner.meter import meter
from threeloops.inner.meter.accesses import ordinal_of
from torch.utils._python_dispatch import _get_current_dispatch_mode
from triton.tools.tensor_descriptor import TensorDescriptor

pytestmark = pytest.mark.skipif(
    not interpreter.interpreted(),
    reason="the meter counts what Triton's interpreter executes; kernels are compiled here",
)


@triton.jit
def copy_kernel(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)


@triton.jit
def unmasked_kernel(x, y, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets)
    tl.store(y + offsets, value)


def found(launch, *arguments, **options):
    with meter() as traffic:
        launch(*arguments, **options)
    return traffic.findings


def line_of(kernel, text):
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(number for number, line in enumerate(lines) if text in line)


class TestOutOfBounds:
    def test_is_masked_and_reported_with_program_and_line(self):
        y = torch.zeros(128)
        findings = found(unmasked_kernel[(2,)], torch.ones(100), y, BLOCK=64)
        (finding,) = findings
        assert (finding.kind, finding.argument, finding.program) == ("out-of-bounds", "x", (1, 0, 0))
        assert (finding.launch, finding.file) == ("unmasked_kernel", __file__)
        assert finding.line == line_of(unmasked_kernel, "tl.load")
        assert "elements 100 … 127" in finding.message and "28 lanes in 1 program" in finding.message
        assert "holds 100" in finding.message
        assert y.tolist() == [1.0] * 100 + [0.0] * 28, "lanes out of bounds load nothing"

    def test_counts_nothing(self):
        with meter() as traffic:
            unmasked_kernel[(2,)](torch.ones(100), torch.zeros(100), BLOCK=64)
        assert (traffic.total.requested_loaded, traffic.total.requested_stored) == (400, 400)
        assert [finding.argument for finding in traffic.findings] == ["x", "y"]

    @pytest.mark.parametrize(("size", "beyond"), [(64, 0), (63, 1), (62, 2)])
    def test_begins_with_the_first_element_past_the_end(self, size, beyond):
        findings = found(unmasked_kernel[(1,)], torch.ones(size), torch.zeros(64), BLOCK=64)
        assert [finding.kind for finding in findings] == ["out-of-bounds"] * bool(beyond)

    def test_an_element_half_outside_is_outside(self):
        storage = torch.zeros(30, dtype=torch.uint8)
        y = torch.ones(8)
        (finding,) = found(unmasked_kernel[(1,)], triton.reinterpret(storage, tl.float32), y, BLOCK=8)
        assert "element 7, but it holds 7" in finding.message
        assert y.tolist() == [0.0] * 8

    def test_neighbours_in_memory_are_told_apart(self):
        """Two tensors that lie side by side: one past the end of the first is not an access to the second."""
        memory = torch.zeros(128)
        left, right = (torch.from_numpy(half) for half in np.split(memory.numpy(), 2))
        assert left.data_ptr() + left.nbytes == right.data_ptr()
        (finding,) = found(unmasked_kernel[(2,)], torch.ones(128), left, BLOCK=64)
        assert finding.argument == "y"
        assert memory[64:].eq(0).all(), "the neighbour is untouched"

    def test_a_view_may_reach_all_of_its_storage(self):
        assert found(unmasked_kernel[(1,)], torch.ones(100)[10:20], torch.zeros(64), BLOCK=64) == []

    def test_before_the_beginning(self):
        @triton.jit
        def before_kernel(x, y):
            tl.store(y, tl.load(x - 3))

        (finding,) = found(before_kernel[(1,)], torch.ones(8), torch.zeros(1))
        assert "element -3" in finding.message

    def test_fill_value_stands_in_for_a_masked_lane(self):
        @triton.jit
        def fill_kernel(x, y, BLOCK: tl.constexpr):
            offsets = tl.arange(0, BLOCK)
            tl.store(y + offsets, tl.load(x + offsets, mask=offsets >= 0, other=5.0))

        y = torch.zeros(8)
        (finding,) = found(fill_kernel[(1,)], torch.ones(6), y, BLOCK=8)
        assert y.tolist() == [1.0] * 6 + [5.0] * 2
        assert finding.argument == "x"

    def test_wild_offsets_do_not_crash(self):
        @triton.jit
        def wild_kernel(x, offsets, y, BLOCK: tl.constexpr):
            lanes = tl.arange(0, BLOCK)
            tl.store(y + lanes, tl.load(x + tl.load(offsets + lanes)))

        offsets = torch.tensor([0, 2**40, -(2**40), 2**60, -(2**60), 2**45, 3, -(2**63)])
        y = torch.full((8,), 9.0)
        findings = found(wild_kernel[(1,)], torch.arange(4.0), offsets, y, BLOCK=8)
        assert y.tolist() == [0, 0, 0, 0, 0, 0, 3, 0]
        assert {finding.kind for finding in findings} == {"out-of-bounds"}

    def test_descriptor_that_promises_more_than_there_is(self):
        @triton.jit
        def tile_kernel(x, y, BM: tl.constexpr, BN: tl.constexpr):
            tile = x.load([0, 0])
            tl.store(y + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], tile)

        x = torch.ones(6, 16)
        y = torch.zeros(8, 16)
        (finding,) = found(tile_kernel[(1,)], TensorDescriptor(x, [8, 16], [16, 1], [8, 16]), y, BM=8, BN=16)
        assert (finding.argument, "elements 96 … 127" in finding.message) == ("x", True)
        assert y.sum() == 96

    def test_atomics(self):
        @triton.jit
        def count_kernel(counts, old, BLOCK: tl.constexpr):
            lanes = tl.arange(0, BLOCK)
            tl.atomic_add(counts + lanes, 1)
            tl.store(old + lanes, tl.atomic_cas(counts + lanes, lanes * 0 + 1, lanes * 0 + 7))

        counts, old = torch.zeros(5, dtype=torch.int32), torch.full((8,), -1, dtype=torch.int32)
        findings = found(count_kernel[(1,)], counts, old, BLOCK=8)
        assert counts.tolist() == [7] * 5 and old.tolist() == [1] * 5 + [0] * 3
        assert [finding.message.split()[0] for finding in findings] == ["atomic", "atomic"]

    def test_null_pointer(self):
        @triton.jit
        def null_kernel(address, y):
            tl.store(y, tl.load(tl.load(address).to(tl.pointer_type(tl.float32))))

        (finding,) = found(null_kernel[(1,)], torch.zeros(1, dtype=torch.int64), torch.ones(1))
        assert "leads into no argument" in finding.message

    def test_an_empty_tensor_holds_nothing(self):
        (finding,) = found(unmasked_kernel[(1,)], torch.zeros(0), torch.zeros(4), BLOCK=4)
        assert "holds 0" in finding.message

    @pytest.mark.parametrize("address", [5 << 48, (5 << 48) + 1000, (5 << 48) - 1000, (5 << 48) + 2**46])
    def test_pointers_keep_their_argument_however_far_they_stray(self, address):
        assert ordinal_of(address) == 5


class TestUninitialisedRead:
    def test_is_reported_where_torch_empty_was_not_filled(self):
        with meter() as traffic:
            partial = torch.empty(100)
            copy_kernel[(1,)](torch.ones(60), partial, 60, BLOCK=64)
            copy_kernel[(2,)](partial, torch.zeros(100), 100, BLOCK=64)
        (finding,) = traffic.findings
        assert (finding.kind, finding.argument, finding.program) == ("uninitialised-read", "x", (0, 0, 0))
        assert "elements between 60 and 63" in finding.message
        assert "160 bytes in 2 programs" in finding.message
        assert finding.line == line_of(copy_kernel, "tl.load")

    @pytest.mark.parametrize(
        "allocate",
        [
            lambda: torch.empty(64),
            lambda: torch.empty_like(torch.zeros(64)),
            lambda: torch.zeros(3).new_empty(64),
            lambda: torch.empty_strided((64,), (1,)),
            lambda: torch.zeros(3).new_empty_strided((64,), (1,)),
            lambda: torch.empty(64, dtype=torch.int64),
            lambda: torch.empty(64, dtype=torch.bfloat16),
            lambda: torch.Tensor(64),
            lambda: torch.empty(200)[5:105],
        ],
    )
    def test_of_every_way_to_allocate(self, allocate):
        with meter() as traffic:
            x = allocate()
            copy_kernel[(1,)](x, torch.zeros_like(x), 64, BLOCK=64)
        assert [finding.kind for finding in traffic.findings] == ["uninitialised-read"]

    @pytest.mark.parametrize(
        "fill",
        [
            lambda x: x.fill_(1),
            lambda x: x.normal_(),
            lambda x: x.copy_(torch.ones(64)),
            lambda x: torch.add(torch.ones(64), 1, out=x),
            lambda x: x.view(8, 8).t().copy_(torch.ones(8, 8)),
            lambda x: x.__setitem__(slice(None), 3.0),
            lambda x: (x[::2].fill_(1), x[1::2].zero_()),
            lambda x: torch._foreach_zero_([x]),
            lambda x: torch.nn.init.ones_(x),
            lambda x: x.numpy().fill(1),
            lambda x: np.copyto(np.from_dlpack(x), 2),
            lambda x: copy_kernel[(4,)](torch.ones(64), x, 64, BLOCK=16),
        ],
    )
    def test_no_false_alarm_however_it_was_written(self, fill):
        with meter() as traffic:
            x = torch.empty(64)
            fill(x)
            copy_kernel[(1,)](x, torch.zeros(64), 64, BLOCK=64)
        assert traffic.findings == []

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.tensor([1.0] * 64),
            lambda: torch.zeros(64),
            lambda: torch.full((64,), float("nan")),
            lambda: torch.randn(64),
            lambda: torch.arange(64),
            lambda: torch.eye(8),
            lambda: torch.cat([torch.ones(32), torch.ones(32)]),
            lambda: torch.ones(8, 8).t().contiguous(),
            lambda: torch.ones(64).to(torch.bfloat16),
            lambda: torch.nn.Linear(8, 8).weight.detach(),
            lambda: torch.from_numpy(np.empty(64)),
            lambda: torch.full((64,), -1, dtype=torch.int32),
            lambda: torch.full((64,), 0xA5, dtype=torch.uint8),
        ],
    )
    def test_no_false_alarm_for_what_torch_makes(self, make):
        with meter() as traffic:
            x = make()
            copy_kernel[(1,)](x, torch.zeros_like(x), 64, BLOCK=64)
        assert traffic.findings == []

    def test_a_kernel_that_stores_the_poison_has_written(self):
        with meter() as traffic:
            x, y = torch.empty(64), torch.empty(64)
            copy_kernel[(1,)](torch.full((64,), -1, dtype=torch.int32).view(torch.float32), x, 64, BLOCK=64)
            copy_kernel[(1,)](x, y, 64, BLOCK=64)
        assert traffic.findings == []

    def test_poison_that_a_kernel_stored_is_told_from_what_nobody_wrote(self):
        with meter() as traffic:
            x = torch.empty(64)
            copy_kernel[(1,)](torch.full((32,), -1, dtype=torch.int32).view(torch.float32), x, 32, BLOCK=32)
            copy_kernel[(1,)](x, torch.zeros(40), 40, BLOCK=64)
        (finding,) = traffic.findings
        assert "elements between 32 and 39" in finding.message and "32 bytes" in finding.message

    @pytest.mark.parametrize(
        "fill",
        [
            lambda x, value: x.fill_(-1),
            lambda x, value: torch.neg(-value, out=x),
            lambda x, value: torch._foreach_copy_([x], [value]),
            lambda x, value: x.view(8, 8).t().copy_(value.view(8, 8)),
            lambda x, value: (x[::2].copy_(value[::2]), x[1::2].copy_(value[1::2])),
            lambda x, value: (x[:10].fill_(-1), x[10:].fill_(-1)),
        ],
    )
    def test_torch_may_write_the_poison_too(self, fill, monkeypatch):
        monkeypatch.setattr(meter_unwritten, "_OTHER_BYTE", 0xFF)
        with meter() as traffic:
            x = torch.empty(64, dtype=torch.int32)
            fill(x, torch.full((64,), -1, dtype=torch.int32))
            copy_kernel[(1,)](x, torch.zeros(64, dtype=torch.int32), 64, BLOCK=64)
        assert traffic.findings == []

    def test_masked_lanes_read_nothing(self):
        with meter() as traffic:
            x = torch.empty(64)
            x[:10] = 1
            copy_kernel[(1,)](x, torch.zeros(64), 10, BLOCK=64)
        assert traffic.findings == []

    def test_what_was_allocated_before_is_not_watched(self):
        x = torch.empty(64)
        assert found(copy_kernel[(1,)], x, torch.zeros(64), 64, BLOCK=64) == []

    def test_what_is_resized_is_forgotten(self):
        with meter() as traffic:
            grown = torch.empty(4)
            grown.resize_(64).fill_(1)
            copy_kernel[(1,)](grown, torch.zeros(64), 64, BLOCK=64)
        assert traffic.findings == []
        assert grown.eq(1).all()

    def test_empty_into_a_tensor_that_holds_something_leaves_it_alone(self):
        with meter() as traffic:
            x = torch.ones(64)
            torch.empty(64, out=x)
            copy_kernel[(1,)](x, torch.zeros(64), 64, BLOCK=64)
        assert (traffic.findings, x.eq(1).all()) == ([], True)

    def test_memory_given_back_is_forgotten(self):
        with meter() as traffic:
            for _ in range(20):
                torch.empty(64)
                x = torch.ones(64)
                copy_kernel[(1,)](x, torch.empty(64), 64, BLOCK=64)
        assert traffic.findings == []

    def test_atomics_read_too(self):
        @triton.jit
        def add_kernel(x, BLOCK: tl.constexpr):
            tl.atomic_add(x + tl.arange(0, BLOCK), 1.0)

        with meter() as traffic:
            x = torch.empty(16)
            add_kernel[(1,)](x, BLOCK=16)
            add_kernel[(1,)](x, BLOCK=16)
        assert [finding.kind for finding in traffic.findings] == ["uninitialised-read"], "then it has been written"

    def test_watching_ends_with_the_meter(self):
        with meter():
            assert torch.empty(1000).isnan().all(), "poison: whoever computes with it sees it"
            assert _get_current_dispatch_mode() is not None
        assert _get_current_dispatch_mode() is None


class TestRaces:
    def test_different_values(self):
        @triton.jit
        def all_kernel(out):
            tl.store(out, tl.program_id(0).to(tl.float32))

        (finding,) = found(all_kernel[(3,)], torch.zeros(1))
        assert (finding.kind, finding.argument, finding.program) == ("write-race", "out", (1, 0, 0))
        assert "different values" in finding.message and "program (0, 0, 0)" in finding.message
        assert finding.line == line_of(all_kernel, "tl.store")

    def test_a_race_of_equal_values_says_so(self):
        @triton.jit
        def flag_kernel(out):
            tl.store(out, 1.0)

        (finding,) = found(flag_kernel[(3,)], torch.zeros(1))
        assert finding.kind == "write-race" and "with the same values" in finding.message

    def test_tiles_that_overlap(self):
        @triton.jit
        def overlap_kernel(out, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
            tl.store(out + tl.program_id(0) * STRIDE + tl.arange(0, BLOCK), tl.program_id(0).to(tl.float32))

        assert found(overlap_kernel[(4,)], torch.zeros(64), STRIDE=16, BLOCK=16) == []
        (finding,) = found(overlap_kernel[(4,)], torch.zeros(64), STRIDE=12, BLOCK=16)
        assert f"{3 * 4 * 4} bytes in 4 programs" in finding.message

    def test_two_arguments_of_one_storage(self):
        @triton.jit
        def halves_kernel(left, right, BLOCK: tl.constexpr):
            target = left if tl.program_id(0) == 0 else right
            tl.store(target + tl.arange(0, BLOCK), tl.program_id(0).to(tl.float32))

        storage = torch.zeros(64)
        assert found(halves_kernel[(2,)], storage[:32], storage[32:], BLOCK=32) == []
        (finding,) = found(halves_kernel[(2,)], storage[:32], storage[16:], BLOCK=32)
        assert finding.argument == "right"

    def test_one_program_may_store_twice(self):
        @triton.jit
        def twice_kernel(out):
            tl.store(out + tl.program_id(0), 1.0)
            tl.store(out + tl.program_id(0), 2.0)

        assert found(twice_kernel[(4,)], torch.zeros(4)) == []

    def test_reading_what_another_program_stores(self):
        @triton.jit
        def shift_kernel(x, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
            offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(x + offsets, tl.load(x + offsets + SHIFT) + 1.0)

        assert found(shift_kernel[(4,)], torch.zeros(64), BLOCK=16, SHIFT=0) == [], "in place is no race"
        for shift in (1, -1):
            x = torch.zeros(68)[2:]
            (finding,) = found(shift_kernel[(4,)], x, BLOCK=16, SHIFT=shift)
            assert (finding.kind, finding.argument) == ("read-write-race", "x")
            assert "12 bytes in 4 programs" in finding.message

    def test_atomics_do_not_race_with_each_other_but_with_stores(self):
        @triton.jit
        def accumulate_kernel(total, ZERO: tl.constexpr):
            if ZERO and tl.program_id(0) == 0:
                tl.store(total, 0.0)
            tl.atomic_add(total, 1.0)

        assert found(accumulate_kernel[(4,)], torch.zeros(1), ZERO=False) == []
        (finding,) = found(accumulate_kernel[(4,)], torch.zeros(1), ZERO=True)
        assert (finding.kind, finding.message.split()[0]) == ("write-race", "atomic")

    def test_the_last_to_arrive_may_read_everything(self):
        @triton.jit
        def reduce_kernel(partial, count, out, ORDER: tl.constexpr, BLOCK: tl.constexpr):
            tl.store(partial + tl.program_id(0), 1.0)
            arrived = tl.atomic_add(count, 1, sem=ORDER)
            if arrived == BLOCK - 1:
                tl.store(out, tl.sum(tl.load(partial + tl.arange(0, BLOCK))))

        partial, out = torch.zeros(4), torch.zeros(1)
        count = torch.zeros(1, dtype=torch.int32)
        assert found(reduce_kernel[(4,)], partial, count, out, ORDER="acq_rel", BLOCK=4) == []
        assert out.item() == 4
        (finding,) = found(reduce_kernel[(4,)], partial, count.zero_(), out, ORDER="relaxed", BLOCK=4)
        assert finding.kind == "read-write-race", "a relaxed atomic orders nothing"

    def test_an_arrival_before_the_store_hands_nothing_over(self):
        @triton.jit
        def early_kernel(partial, count, out, BLOCK: tl.constexpr):
            arrived = tl.atomic_add(count, 1)
            tl.store(partial + tl.program_id(0), 1.0)
            if arrived == BLOCK - 1:
                tl.store(out, tl.sum(tl.load(partial + tl.arange(0, BLOCK))))

        (finding,) = found(
            early_kernel[(4,)], torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(1), BLOCK=4
        )
        assert finding.kind == "read-write-race"

    def test_who_stores_after_all_have_read_and_arrived_does_not_race(self):
        @triton.jit
        def consume_kernel(x, count, out, LATE: tl.constexpr, BLOCK: tl.constexpr):
            if LATE:
                arrived = tl.atomic_add(count, 1)
                tl.store(out + tl.program_id(0), tl.load(x))
            else:
                tl.store(out + tl.program_id(0), tl.load(x))
                arrived = tl.atomic_add(count, 1)
            if arrived == BLOCK - 1:
                tl.store(x, 0.0)

        x, out = torch.ones(1), torch.zeros(4)
        count = torch.zeros(1, dtype=torch.int32)
        assert found(consume_kernel[(4,)], x, count, out, LATE=False, BLOCK=4) == []
        assert x.item() == 0 and out.tolist() == [1.0] * 4
        (finding,) = found(consume_kernel[(4,)], x, count.zero_(), out, LATE=True, BLOCK=4)
        assert finding.kind == "read-write-race"

    def test_launches_do_not_race(self):
        with meter() as traffic:
            out = torch.zeros(64)
            copy_kernel[(4,)](torch.ones(64), out, 64, BLOCK=16)
            copy_kernel[(2,)](torch.ones(64), out, 64, BLOCK=32)
        assert traffic.findings == []


def test_findings_belong_to_their_launch():
    with meter() as traffic:
        copy_kernel[(1,)](torch.ones(8), torch.zeros(8), 8, BLOCK=8)
        copy_kernel[(1,)](torch.ones(4), torch.zeros(8), 8, BLOCK=8)
    assert [len(launch.findings) for launch in traffic.launches] == [0, 1]
    assert traffic.findings == list(traffic.launches[1].findings)
    text = str(traffic.findings[0])
    assert text.startswith("out-of-bounds in copy_kernel, program (0, 0, 0), test_meter_findings.py:")


def test_one_finding_for_one_line_and_argument_however_often():
    findings = found(unmasked_kernel[(8,)], torch.ones(16), torch.zeros(128), BLOCK=16)
    (finding,) = findings
    assert "112 lanes in 7 programs" in finding.message


def test_program_coordinates_of_a_grid_in_three_dimensions():
    @triton.jit
    def corner_kernel(x):
        last = (tl.program_id(0) == 1) & (tl.program_id(1) == 2) & (tl.program_id(2) == 3)
        if last:
            tl.store(x + 100, 1.0)

    (finding,) = found(corner_kernel[(2, 3, 4)], torch.zeros(4))
    assert finding.program == (1, 2, 3)


def test_the_line_is_that_of_the_device_function_that_did_it():
    (finding,) = found(outer_kernel[(1,)], torch.zeros(2), BLOCK=4)
    assert finding.line == line_of(inner_function, "tl.load")


@triton.jit
def inner_function(pointer, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    return tl.load(pointer + offsets)


@triton.jit
def outer_kernel(x, BLOCK: tl.constexpr):
    tl.store(x + 0, tl.sum(inner_function(x, BLOCK)))


@triton.jit
def row_sum_kernel(x, out, columns, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    if OTHER is None:
        values = tl.load(x + column, mask=column < columns)
    else:
        values = tl.load(x + column, mask=column < columns, other=OTHER)
    tl.store(out, tl.sum(values, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_masked_lanes_without_other_are_not_zeros(dtype):
    """Triton leaves them undefined: a kernel that counts on zeros must not look right."""
    x, out = torch.ones(5, dtype=dtype), torch.zeros(1, dtype=dtype)
    with meter():
        row_sum_kernel[(1,)](x, out, 5, OTHER=None, BLOCK=8)
    assert out.item() != 5
    with meter():
        row_sum_kernel[(1,)](x, out, 5, OTHER=0, BLOCK=8)
    assert out.item() == 5
    full = torch.ones(8, dtype=dtype)
    with meter():
        row_sum_kernel[(1,)](full, out, 8, OTHER=None, BLOCK=8)
    assert out.item() == 8


@triton.jit
def masked_row_maximum_kernel(x, out, rows, BLOCK: tl.constexpr):
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    largest = tl.max(tl.load(x + row * BLOCK + column, mask=row < rows), 1)
    tl.store(out + tl.arange(0, BLOCK), largest, mask=tl.arange(0, BLOCK) < rows)


def test_rows_that_nobody_asked_for_warn_of_nothing(recwarn):
    x, out = torch.randn(3, 8), torch.zeros(3)
    with meter():
        masked_row_maximum_kernel[(1,)](x, out, 3, BLOCK=8)
    assert torch.equal(out, x.max(1).values) and not recwarn.list
