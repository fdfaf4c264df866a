"""The L2 model: against a naive cache, in closed forms, and in the order in which a GPU runs programs."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threeloops.inner import interpreter

interpreter.enable_without_gpu()

import triton
import triton.language as tl
from threeloops.inner.meter import L2, meter
from threeloops.inner.meter.accesses import Patterns
from threeloops.inner.meter.l2 import _launch_order, _lines_of, _simulate, _Stream
from threeloops.inner.meter.recording import ATOMIC, LOAD, STORE

pytestmark = pytest.mark.skipif(
    not interpreter.interpreted(),
    reason="the meter counts what Triton's interpreter executes; kernels are compiled here",
)
ordinary = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


class NaiveCache:
    """One dictionary a set, least recently used first: line → [valid sectors, dirty sectors]."""

    def __init__(self, l2):
        self.l2, self.sets = l2, [OrderedDict() for _ in range(l2.sets)]
        self.fetched = self.written = 0

    def access(self, kind, line, touched, covered):
        """`touched`, `covered`: sets of sector numbers within the line."""
        lines = self.sets[line % len(self.sets)]
        if line not in lines:
            if len(lines) == self.l2.ways:
                _, (_, dirty) = lines.popitem(last=False)
                self.written += len(dirty)
            lines[line] = [set(), set()]
        valid, dirty = lines[line]
        lines.move_to_end(line)
        if kind != STORE:
            self.fetched += len(touched - valid)
            valid |= touched
        if kind != LOAD:
            dirty |= touched
            valid |= covered

    def finish(self):
        self.written += sum(len(dirty) for lines in self.sets for _, dirty in lines.values())
        return self.fetched, self.written


caches = st.builds(
    lambda sets, ways, sectors: L2(sets * ways * 32 * sectors, ways=ways, line_bytes=32 * sectors),
    st.integers(1, 7),
    st.integers(1, 4),
    st.sampled_from([1, 2, 4, 8]),
)


@ordinary
@given(caches, st.data())
def test_the_same_sectors_as_a_naive_cache(l2, data):
    sectors = 2 ** (l2.line_bytes // l2.sector_bytes) - 1
    accesses = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from([LOAD, STORE, ATOMIC]), st.integers(0, 30), st.integers(1, sectors), st.integers(0, 255)
            ),
            min_size=1,
            max_size=200,
        )
    )
    naive = NaiveCache(l2)
    for kind, line, touched, covered in accesses:
        naive.access(kind, line, bits(touched), bits(touched & covered))
    kinds, lines, touched, covered = (np.array(each) for each in zip(*accesses, strict=True))
    stream = _Stream(lines, touched.astype(np.uint8), (touched & covered).astype(np.uint8), kinds)
    assert _simulate(l2, stream) == naive.finish()


def bits(mask):
    return {place for place in range(8) if mask >> place & 1}


@ordinary
@given(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)), st.integers(1, 9), st.data())
def test_programs_run_x_fastest_in_turns_and_the_next_takes_a_free_place(grid, resident, data):
    x, y, z = grid
    in_launch_order = [(i * y + j) * z + k for k in range(z) for j in range(y) for i in range(x)]
    lengths = {program: data.draw(st.integers(0, 4)) for program in in_launch_order}
    waiting = [program for program in in_launch_order if lengths[program]]
    running, expected = [], []
    while waiting or running:
        while waiting and len(running) < resident:
            running.append([waiting.pop(0), 0])
        for place in running:
            expected.append(tuple(place))
            place[1] += 1
        running = [place for place in running if place[1] < lengths[place[0]]]
    programs = np.array([program for program in sorted(lengths) for _ in range(lengths[program])], dtype=np.int64)
    turns = [turn for program in sorted(lengths) for turn in range(lengths[program])]
    order = _launch_order(programs, grid, resident)
    assert [(int(programs[row]), turns[row]) for row in order] == expected


@triton.jit
def gather_kernel(x, offsets, out, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(offsets + lanes, mask=lanes < n, other=0)
    tl.store(out + lanes, tl.load(x + place, mask=lanes < n), mask=lanes < n)


@pytest.mark.parametrize("resident", [1, 3, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_whole_launch_as_a_naive_cache_sees_it(resident, dtype, seed):
    size, n, block = 3100, 500, 32
    generator = torch.Generator().manual_seed(seed)
    x, offsets = torch.zeros(size, dtype=dtype), torch.randint(0, size, (n,), generator=generator)
    out = torch.zeros(n, dtype=dtype)
    l2 = L2(4096, ways=4, resident_programs=resident)
    with meter(l2) as traffic:
        gather_kernel[(triton.cdiv(n, block),)](x, offsets, out, n, BLOCK=block)

    item, programs = x.element_size(), triton.cdiv(n, block)
    second = -(-size * item // 512) * 512
    third = second + -(-n * 8 // 512) * 512
    accesses = []
    for program in range(programs):
        lanes = range(program * block, min(n, (program + 1) * block))
        accesses.append(
            [
                (LOAD, bytes_at(second, lanes, 8)),
                (LOAD, bytes_at(0, offsets[list(lanes)].tolist(), item)),
                (STORE, bytes_at(third, lanes, item)),
            ]
        )
    naive = NaiveCache(l2)
    for wave in range(0, programs, resident):
        for turn in range(3):
            for program in range(wave, min(programs, wave + resident)):
                kind, touched = accesses[program][turn]
                for line in sorted({byte // 128 for byte in touched}):
                    within = [byte for byte in touched if byte // 128 == line]
                    sectors = {byte % 128 // 32 for byte in within}
                    full = {each for each in sectors if sum(byte % 128 // 32 == each for byte in within) == 32}
                    naive.access(kind, line, sectors, full)
    fetched, written = naive.finish()
    total = traffic.total
    assert (total.dram_loaded, total.dram_stored) == (32 * fetched, 32 * written)
    assert total.dram_bytes == total.dram_loaded + total.dram_stored
    assert total.work.bytes == total.dram_bytes


def bytes_at(start, places, item):
    return {start + place * item + byte for place in places for byte in range(item)}


@triton.jit
def passes_kernel(x, out, n, times, BLOCK: tl.constexpr):
    total = 0.0
    for _ in range(times):
        for start in range(0, n, BLOCK):
            total += tl.sum(tl.load(x + start + tl.arange(0, BLOCK)))
    tl.store(out + tl.program_id(0), total)


@pytest.mark.parametrize(
    ("kib", "loaded"),
    [(256, 128), (128 + 8, 128), (64, 3 * 128)],
)
def test_a_second_pass_is_free_where_it_fits_and_whole_where_it_does_not(kib, loaded):
    """Least recently used out first: a cycle longer than the cache misses every time."""
    x, out = torch.zeros(32 * 1024), torch.zeros(1)
    with meter(L2(kib * 1024)) as traffic:
        passes_kernel[(1,)](x, out, x.numel(), 3, BLOCK=4096)
    assert traffic.total.dram_loaded == loaded * 1024
    assert traffic.total.dram_stored == 32, "one sector, though 4 bytes were stored"
    assert traffic.total.unique_loaded == 128 * 1024


@triton.jit
def store_then_load_kernel(x, out, STORED: tl.constexpr):
    tl.store(x + tl.arange(0, STORED), tl.full((STORED,), 1.0, tl.float32))
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, 8))))


@pytest.mark.parametrize(("stored", "fetched"), [(8, 0), (4, 32)])
def test_a_sector_is_fetched_unless_all_of_it_was_stored(stored, fetched):
    with meter(L2(4096)) as traffic:
        store_then_load_kernel[(1,)](torch.zeros(8), torch.zeros(1), STORED=stored)
    assert (traffic.total.dram_loaded, traffic.total.dram_stored) == (fetched, 64)


def test_an_item_may_straddle_sectors_and_lines():
    pattern, _ = Patterns().find(np.array([64], dtype=np.uint64), None, 8, site=0)
    for within, expected in [(0, [(0, 0b0001)]), (28, [(0, 0b0011)]), (124, [(0, 0b1000), (1, 0b0001)])]:
        lines, touched, covered = _lines_of(pattern, within, 128, 32)
        assert list(zip(lines.tolist(), touched.tolist(), strict=True)) == expected
        assert not covered.any()


def test_unaligned_rows_share_sectors():
    x = torch.zeros(32 * 1024)[1 : 1 + 8 * 1024]
    with meter(L2(1 << 20)) as traffic:
        passes_kernel[(1,)](x, torch.zeros(1), x.numel(), 1, BLOCK=4096)
    assert traffic.total.dram_loaded == 32 * 1024 + 32
    assert traffic.total.unique_loaded == 32 * 1024


def test_every_launch_starts_cold_and_writes_back_what_is_dirty():
    x, out = torch.zeros(4096), torch.zeros(1)
    with meter(L2(1 << 20)) as traffic:
        for _ in range(2):
            passes_kernel[(1,)](x, out, x.numel(), 1, BLOCK=4096)
    assert [launch.dram_loaded for launch in traffic.launches] == [16_384, 16_384]
    assert traffic.total.dram_bytes == 2 * (16_384 + 32)


def test_resident_programs_share_what_they_read_at_the_same_time():
    """Programs that sweep the same tensor together fetch it once, one after another each fetches it anew."""
    x, out = torch.zeros(64 * 1024), torch.zeros(4)
    loaded = {}
    for resident in (1, 2, 4):
        with meter(L2(64 * 1024, resident_programs=resident)) as traffic:
            passes_kernel[(4,)](x, out, x.numel(), 1, BLOCK=4096)
        loaded[resident] = traffic.total.dram_loaded
    assert loaded == {1: 4 * x.nbytes, 2: 2 * x.nbytes, 4: x.nbytes}


@triton.jit
def matmul_kernel(a, b, c, n, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, n, BK):
        tile_a = tl.load(a + rows[:, None] * n + start + depth[None, :])
        total = tl.dot(tile_a, tl.load(b + (start + depth[:, None]) * n + columns[None, :]), total)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


def test_an_l2_that_holds_everything_moves_the_unique_bytes():
    a, b, c = (torch.zeros(256, 256, dtype=torch.float16) for _ in range(3))
    with meter("H100 SXM") as traffic:
        matmul_kernel[(4, 4)](a, b, c, 256, BM=64, BN=64, BK=32)
    assert traffic.total.dram_bytes == traffic.total.unique_bytes == 3 * 256 * 256 * 2


def test_the_size_is_that_of_the_hardware_table():
    model = L2.of("h100 sxm", programs_per_multiprocessor=2)
    assert (model.size_bytes, model.resident_programs, model.ways) == (50 * 2**20, 264, 16)
    assert "H100" in str(model) and "50 MiB" in str(model) and "264 resident" in str(model) and "16-way" in str(model)
    with pytest.raises(LookupError, match="no accelerator"), meter("H1000"):
        pass


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"size_bytes": 0}, "size_bytes = 0"),
        ({"size_bytes": 5000}, "size_bytes = 5000"),
        ({"size_bytes": 4096, "ways": 0}, "ways = 0"),
        ({"size_bytes": 4096, "line_bytes": 48}, "line_bytes = 48"),
        ({"size_bytes": 8192, "line_bytes": 512}, "line_bytes = 512"),
        ({"size_bytes": 4096, "resident_programs": 0}, "resident_programs = 0"),
    ],
)
def test_impossible_caches_are_refused(options, names):
    with pytest.raises(ValueError, match=names):
        L2(**options)


def test_nested_meters_have_models_of_their_own():
    x, out = torch.zeros(8 * 1024), torch.zeros(1)
    with meter(L2(1 << 20)) as large, meter(L2(8192)) as small, meter() as none:
        passes_kernel[(1,)](x, out, x.numel(), 2, BLOCK=4096)
    assert [each.total.dram_loaded for each in (large, small, none)] == [x.nbytes, 2 * x.nbytes, None]
