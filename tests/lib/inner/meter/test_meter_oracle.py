"""The meter against an oracle of Python sets, for random access patterns."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threeloops.inner import interpreter
from threeloops.inner.meter import counting as meter_analysis

interpreter.enable_without_gpu()

import triton
import triton.language as tl
from threeloops.inner.meter import ArgumentTraffic, meter
from threeloops.inner.meter.accesses import Pattern, Patterns, Spaces
from threeloops.inner.meter.recording import LOAD, Recording

pytestmark = pytest.mark.skipif(
    not interpreter.interpreted(),
    reason="the meter counts what Triton's interpreter executes; kernels are compiled here",
)

DTYPES = [torch.int8, torch.float16, torch.float32, torch.float64]
ordinary = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])


@triton.jit
def random_kernel(x, offsets, flags, out, KIND: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(offsets + lanes)
    mask = tl.load(flags + lanes) != 0
    if KIND == "load":
        tl.store(out + lanes, tl.load(x + place, mask=mask, other=0), mask=mask)
    elif KIND == "store":
        value = tl.full((BLOCK,), 1, tl.int32) + tl.program_id(0)
        tl.store(x + place, value.to(x.dtype.element_ty), mask=mask)
    elif KIND == "store alike":
        tl.store(x + place, tl.full((BLOCK,), 1, x.dtype.element_ty), mask=mask)
    elif KIND == "atomic":
        tl.atomic_add(x + place, tl.full((BLOCK,), 1, x.dtype.element_ty), mask=mask)


class Oracle:
    """Bytes, sectors and requests, kept in sets and counted one lane at a time."""

    def __init__(self):
        self.sectors = self.requests = 0
        self.arguments = {}

    def access(self, name, kind, first_bytes, itemsize):
        """`first_bytes`: the first byte of every lane, None for lanes that do nothing."""
        requested, unique = self.arguments.setdefault((name, kind), ([0], set()))
        for start in range(0, len(first_bytes), 32):
            sectors = set()
            for byte in first_bytes[start : start + 32]:
                if byte is not None:
                    touched = range(byte, byte + itemsize)
                    requested[0] += itemsize
                    unique.update(touched)
                    sectors.update(each // 32 for each in touched)
            self.sectors += len(sectors)
            self.requests += bool(sectors)

    def traffic(self, name):
        loaded, stored = (self.arguments.get((name, kind), ([0], set())) for kind in ("load", "store"))
        return ArgumentTraffic(loaded[0][0], stored[0][0], len(loaded[1]), len(stored[1]))


@st.composite
def problems(draw):
    block = draw(st.sampled_from([1, 2, 16, 32, 64, 128]))
    programs = draw(st.integers(1, 4))
    size = draw(st.integers(1, 200))
    view = draw(st.integers(0, min(size - 1, 20)))
    outside = draw(st.sampled_from([0, 0, 5]))
    lanes = block * programs
    shape = draw(st.sampled_from(["random", "contiguous", "strided", "reversed", "constant"]))
    start = draw(st.integers(-view - outside, size - view - 1))
    if shape == "random":
        offsets = draw(
            st.lists(st.integers(-view - outside, size - view - 1 + outside), min_size=lanes, max_size=lanes)
        )
    else:
        stride = {"contiguous": 1, "strided": draw(st.integers(2, 9)), "reversed": -1, "constant": 0}[shape]
        offsets = [start + stride * lane for lane in range(lanes)]
        if not outside:
            offsets = [(each + view) % size - view for each in offsets]
    flags = draw(st.one_of(st.just([1] * lanes), st.lists(st.integers(0, 1), min_size=lanes, max_size=lanes)))
    return block, programs, size, view, offsets, flags, draw(st.sampled_from(DTYPES))


@ordinary
@given(problems(), st.sampled_from(["load", "store", "store alike", "atomic"]))
def test_counts_equal_those_of_sets(problem, kind):
    block, programs, size, view, offsets, flags, dtype = problem
    if kind == "atomic" and dtype in (torch.int8, torch.float16):
        dtype = torch.float32
    x = torch.zeros(size, dtype=dtype)[view:]
    out = torch.zeros(block * programs, dtype=dtype)
    places, masks = torch.tensor(offsets), torch.tensor(flags, dtype=torch.int8)
    with meter() as traffic:
        random_kernel[(programs,)](x, places, masks, out, KIND=kind, BLOCK=block)

    item, oracle, outside, atomics = x.element_size(), Oracle(), 0, 0
    writers = {}
    for program in range(programs):
        lanes = range(program * block, (program + 1) * block)
        oracle.access("offsets", "load", [8 * lane for lane in lanes], 8)
        oracle.access("flags", "load", lanes, 1)
        active = [(view + offsets[lane]) * item if flags[lane] else None for lane in lanes]
        good = [byte if byte is not None and 0 <= byte < size * item else None for byte in active]
        outside += sum(byte is not None for byte in active) - sum(byte is not None for byte in good)
        if kind in ("load", "atomic"):
            oracle.access("x", "load", good, item)
        if kind == "load":
            oracle.access("out", "store", [lane * item if flags[lane] else None for lane in lanes], item)
        if kind.startswith("store"):
            oracle.access("x", "store", good, item)
            for byte in good:
                if byte is not None:
                    writers.setdefault(byte, set()).add(program)
        if kind == "atomic":
            # One access that reads and writes: its sectors and requests were counted as a load.
            sectors, requests = oracle.sectors, oracle.requests
            oracle.access("x", "store", good, item)
            oracle.sectors, oracle.requests = sectors, requests
            atomics += sum(byte is not None for byte in good)

    total = traffic.total
    assert total.atomics == atomics
    assert total.arguments == {name: oracle.traffic(name) for name in ("x", "offsets", "flags", "out")}
    assert (total.sectors, total.requests) == (oracle.sectors, oracle.requests)
    assert total.unique_bytes == sum(len(unique) for _, unique in oracle.arguments.values())
    assert total.requested_bytes == sum(requested[0] for requested, _ in oracle.arguments.values())
    kinds = {finding.kind for finding in traffic.findings}
    races = any(len(programs) > 1 for programs in writers.values())
    assert kinds == ({"out-of-bounds"} if outside else set()) | ({"write-race"} if races else set())
    if races:
        race = next(finding for finding in traffic.findings if finding.kind == "write-race")
        assert ("with the same values" in race.message) == (kind == "store alike")
        assert ("different values" in race.message) == (kind == "store")
    if outside:
        assert f"{outside} lane" in next(each.message for each in traffic.findings if each.kind == "out-of-bounds")


@triton.jit
def move_kernel(x, sources, targets, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source, target = tl.load(sources + lanes), tl.load(targets + lanes)
    value = tl.load(x + source, mask=source >= 0, other=0.0)
    tl.store(x + target, value, mask=target >= 0)


def conflicting_lanes(memory, sources, targets, block):
    """How many lanes of `move_kernel` store to an address that another lane of the same store gives another value."""
    conflicts = 0
    for start in range(0, len(sources), block):
        lanes = range(start, start + block)
        values = {lane: memory[sources[lane]] if sources[lane] >= 0 else 0.0 for lane in lanes if targets[lane] >= 0}
        for lane, value in values.items():
            rivals = [other for other in values if targets[other] == targets[lane]]
            conflicts += any(values[other] != value for other in rivals)
        for lane, value in values.items():
            memory[targets[lane]] = value
    return conflicts


@ordinary
@given(st.integers(1, 4), st.sampled_from([1, 4]), st.sampled_from([8, 40, 300]), st.data())
def test_programs_race_where_one_stores_what_another_loads_or_stores(programs, block, size, data):
    places = st.lists(st.integers(-1, size - 1), min_size=programs * block, max_size=programs * block)
    sources, targets = data.draw(places), data.draw(places)
    x = torch.randperm(size).float() + 1
    conflicts = conflicting_lanes(x.tolist(), sources, targets, block)
    with meter() as traffic:
        move_kernel[(programs,)](x, torch.tensor(sources), torch.tensor(targets), BLOCK=block)
    who = [lane // block for lane in range(programs * block)]
    stores = {(program, place) for program, place in zip(who, targets, strict=True) if place >= 0}
    loads = {(program, place) for program, place in zip(who, sources, strict=True) if place >= 0}
    write_races = {place for program, place in stores if any((p, place) in stores for p in range(program))}
    read_races = {place for q, place in loads if any((p, place) in stores for p in range(programs) if p != q)}
    expected = ({"write-race"} if write_races else set()) | ({"read-write-race"} if read_races else set())
    for finding in (each for each in traffic.findings if each.kind == "store-conflict"):
        assert f"; {conflicts} lanes in " in finding.message
    found = {finding.kind for finding in traffic.findings}
    assert ("store-conflict" in found) == bool(conflicts)
    found -= {"store-conflict"}
    # Where a later store hides the one that a load meets, the race between the stores says it.
    assert found == expected or (write_races and found == {"write-race"})


@ordinary
@given(st.data())
def test_reads_of_unwritten_memory_are_counted_to_the_byte(data):
    size = data.draw(st.integers(1, 60))
    written = np.zeros(size, bool)
    with meter() as traffic:
        x = torch.empty(size, dtype=data.draw(st.sampled_from([torch.float32, torch.int32])))
        for _ in range(data.draw(st.integers(0, 4))):
            if data.draw(st.booleans()):
                first, last, step = data.draw(st.tuples(*[st.integers(0, size)] * 2, st.integers(1, 4)))
                x[first:last:step] = 1
                written[first:last:step] = True
            else:
                targets = data.draw(st.lists(st.integers(0, size - 1), min_size=4, max_size=4))
                random_kernel[(1,)](x, torch.tensor(targets), torch.ones(4), x, KIND="store", BLOCK=4)
                written[targets] = True
        sources = data.draw(st.lists(st.integers(0, size - 1), min_size=8, max_size=8))
        out = torch.zeros(8, dtype=x.dtype)
        random_kernel[(2,)](x, torch.tensor(sources), torch.ones(8), out, KIND="load", BLOCK=4)
    unwritten = 4 * int((~written[sources]).sum())
    assert [finding.kind for finding in traffic.findings] == ["uninitialised-read"] * bool(unwritten)
    if unwritten:
        assert f"; {unwritten} bytes in" in traffic.findings[0].message


@ordinary
@given(
    st.lists(st.tuples(st.integers(0, 4096), st.booleans()), min_size=1, max_size=100),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.integers(0, 200),
)
def test_a_pattern_marks_the_bytes_it_touches_wherever_it_lies(lanes, itemsize, base):
    addresses = np.array([1 << 48, *((1 << 48) + offset for offset, _ in lanes)], dtype=np.uint64)
    mask = np.array([True, *(active for _, active in lanes)])
    pattern, start = Patterns().find(addresses, mask, itemsize, site=0)
    assert start == 1 << 48
    expected = {0 + byte for byte in range(itemsize)}
    expected |= {offset + byte for offset, active in lanes if active for byte in range(itemsize)}
    flags = np.zeros(5000, bool)
    pattern.mark(flags, base)
    assert set(np.flatnonzero(flags).tolist()) == {base + byte for byte in expected}
    assert set(pattern.places(base).tolist()) == {base + byte for byte in expected}
    assert pattern.look(flags, base).all()
    assert (pattern.low, pattern.high) == (0, max([0, *(offset for offset, active in lanes if active)]))
    assert pattern.lanes == mask.sum()


def test_a_pattern_is_kept_once_at_any_address_and_in_any_layout():
    patterns = Patterns()
    tile = np.arange(64, dtype=np.uint64).reshape(8, 8) * np.uint64(4)
    first, base = patterns.find(tile + np.uint64(1000), None, 4, site=0)
    again, moved = patterns.find(np.asfortranarray(tile + np.uint64(5000)), np.ones((8, 8), bool), 4, site=1)
    assert (first is again, base, moved) == (True, 1000, 5000)
    transposed, _ = patterns.find(tile.T + np.uint64(1000), None, 4, site=0)
    narrower, _ = patterns.find(tile + np.uint64(1000), None, 2, site=0)
    masked, _ = patterns.find(tile + np.uint64(1000), tile < 128, 4, site=0)
    assert len({id(each) for each in (first, transposed, narrower, masked)}) == len(patterns.all) == 4


def test_two_types_on_one_source_line_are_two_patterns():
    patterns, scalar = Patterns(), np.array([64], dtype=np.uint64)
    sizes = [patterns.find(scalar, None, itemsize, site=0)[0].bytes for itemsize in (4, 2, 8, 4)]
    assert sizes == [4, 2, 8, 4]


def test_a_line_that_accesses_two_arguments_in_turn_looks_each_pattern_up_once(monkeypatch):
    looked_up = []
    look_up = Patterns._look_up
    monkeypatch.setattr(Patterns, "_look_up", lambda self, identity: looked_up.append(1) or look_up(self, identity))
    patterns = Patterns()
    row = np.arange(0, 64, 4, dtype=np.uint64)
    arguments = [row + np.uint64(1 << 48), 3 * row + np.uint64(2 << 48)]
    found = [patterns.find(addresses, None, 4, site=0)[0].index for _ in range(5) for addresses in arguments]
    assert found == [0, 1] * 5
    assert len(looked_up) == 2


def test_a_tensor_that_lives_elsewhere_keeps_its_storage_and_leads_to_its_host_copy():
    """As in an interpreter that copies its arguments from a GPU."""
    original, host = torch.zeros(8)[2:], torch.zeros(8)[2:]
    spaces = Spaces()
    space = spaces.add("x", original, host)
    assert spaces.add("again", original[1:], host[1:]).storage == space.storage
    assert (space.first + int(space.shift)) % 2**64 == host.data_ptr()
    assert (space.end - space.start, space.first - space.start) == (32, 8)
    assert spaces.of(host) is space and spaces.of(original) is None


def test_what_masked_lanes_point_at_does_not_matter():
    mask = np.array([False, True, True, False])
    pattern, base = Patterns().find(np.array([2**63, 96, 100, 7], dtype=np.uint64), mask, 4, site=0)
    assert (base, pattern.low, pattern.high, pattern.lanes, pattern.bytes) == (96, 0, 4, 2, 8)
    assert isinstance(pattern, Pattern)
    assert pattern.sectors(base) == (1, 1)
    assert pattern.sectors(base - 4) == (2, 1), "28 to 35 lies in two sectors"


def test_a_little_out_of_a_lot_is_counted_without_a_flag_for_every_byte(monkeypatch):
    monkeypatch.setattr(meter_analysis, "DENSE_UNITS", 1000)
    x, places = torch.zeros(1 << 20), torch.tensor([0, 1, 1 << 19, (1 << 20) - 1] * 4)
    with meter() as traffic:
        random_kernel[(1,)](x, places, torch.ones(16), torch.zeros(16), KIND="load", BLOCK=16)
    assert traffic.total.arguments["x"].unique_loaded == 16


def test_an_item_that_straddles_two_sectors_costs_both():
    """Torch aligns its elements; a pointer that a kernel computed need not be."""
    pattern, _ = Patterns().find(np.array([64], dtype=np.uint64), None, 8, site=0)
    assert [pattern.sectors(base)[0] for base in (0, 24, 28, 31, 32)] == [1, 1, 2, 2, 1]


def test_a_mask_of_integers_is_a_mask():
    """Triton's interpreter, before it was repaired, calls a comparison by its operands' type."""
    from triton.runtime.interpreter import TensorHandle

    recorded = Recording()
    x = torch.zeros(8)
    space = recorded.spaces.add("x", x, x)
    pointers = TensorHandle(
        np.uint64(space.first) + np.arange(8, dtype=np.uint64) * np.uint64(4), tl.pointer_type(tl.float32)
    )
    mask = TensorHandle(np.array([1, 1, 0, 0, 1, 0, 0, 2], dtype=np.int32), tl.int32)
    real, same = recorded.access(LOAD, pointers, mask)
    assert same is mask
    assert real.data[0] == x.data_ptr()
    assert recorded.patterns.all[0].active.tolist() == [0, 4, 16, 28]
