"""Rows of the kernels benchmark: streamed, kept, shared out evenly, and lost one case at a time; peers timed fairly."""

import contextlib
import json

import pytest
import torch
from threeloops.inner import costs
from threeloops.inner.kernels.catalog.sparse_functions import masked_blocks
from threeloops.inner.kernels.sparse import block_sparse_attention
from threeloops.inner.kernels.sparse.block_mask import BlockMask
from threeloops_grader.evidence.result_rows import begin, measured

from benchmarks import kernel_part, kernel_prediction, kernel_timing, kernels
from benchmarks.kernel_cases import entries, label, weight
from benchmarks.kernel_part import CONTEXT_LOST, TORCH, run_part, work
from benchmarks.kernel_peers import parties
from benchmarks.memory import parameters
from benchmarks.memory_offload import CHUNKS, STATE_BYTES


def piece(name, *values, error=None, done=None):
    def rows():
        if done is not None:
            done.append(name)
        yield from ({"kernel": name, "value": value} for value in values)
        if error:
            raise error

    return {"kernel": name}, rows


def test_a_case_that_raises_loses_its_own_rows_and_no_other(tmp_path):
    path = tmp_path / "rows.jsonl"
    begin(path, "")
    work(iter([piece("a", 1), piece("b", 2, error=RuntimeError("no kernel image\nand more")), piece("c", 3)]), path)
    failed = {"kernel": "b", "failed": "RuntimeError: no kernel image"}
    assert measured(path) == [
        {"kernel": "a", "value": 1},
        {"kernel": "b", "value": 2},
        failed,
        {"kernel": "c", "value": 3},
    ]


def test_a_case_that_was_cut_off_is_done_again_and_what_is_there_is_not(tmp_path):
    path, done = tmp_path / "rows.jsonl", []
    begin(path, "")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            work(iter([piece("a", 1, done=done), piece("b", 2, error=KeyboardInterrupt(), done=done)]), path)
    assert measured(path) == [{"kernel": "a", "value": 1}, {"kernel": "b", "value": 2}]
    work(iter([piece("a", 1, done=done), piece("b", 2, done=done), piece("c", 3, done=done)]), path)
    assert done == ["a", "b", "b", "c"], "what never ends must not be begun for ever"
    assert measured(path)[1]["failed"] == "twice begun and never ended"


def test_a_kernel_that_breaks_the_context_ends_its_process_and_the_next_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    begin(path, "")
    monkeypatch.setattr(kernel_part, "context_is_lost", lambda error: True)
    pieces = [piece("a", 1), piece("b", error=RuntimeError("illegal memory access")), piece("c", 3)]
    with pytest.raises(SystemExit) as ended:
        work(iter(pieces), path)
    assert ended.value.code == CONTEXT_LOST
    work(iter(pieces), path)
    assert [row["kernel"] for row in measured(path)] == ["a", "b", "c"]


def test_rows_are_in_the_file_of_a_part_and_a_second_call_adds_none(tmp_path):
    path = tmp_path / "rows.jsonl"
    first = run_part("kernel_timing", quick=True, seconds=200, rows=path, about="here")
    written = path.read_text()
    assert run_part("kernel_timing", quick=True, seconds=200, rows=path, about="here") == first
    assert path.read_text() == written and len(first) > 20


def named(case):
    return json.dumps(label(*case))


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("shares", [2, 3, 4, 6])
def test_shares_of_the_timing_are_as_long_as_each_other(quick, shares):
    every = list(kernel_timing.timed_cases(quick, (0, 1)))
    parts = [list(kernel_timing.timed_cases(quick, (i, shares))) for i in range(shares)]
    assert sorted(map(named, every)) == sorted(named(case) for part in parts for case in part)
    lengths = [sum(weight(*case) for case in part) for part in parts]
    longest = max(weight(*case) for case in every)
    assert max(lengths) - min(lengths) <= longest, "a share has more to do than another, by more than a case"


def test_no_party_is_timed_under_two_names():
    for entry in entries():
        found = parties(entry, compiled=False)
        assert "SDPA with a mask" not in found, f"{entry.name}: torch's own is that already"
        functions = [function for function in found.values() if not isinstance(function, str)]
        assert len(set(functions)) == len(functions), entry.name


def test_the_mask_of_the_block_sparse_peer_is_made_once(monkeypatch):
    made = []
    real = BlockMask.by_position
    monkeypatch.setattr(BlockMask, "by_position", lambda *arguments: made.append(1) or real(*arguments))
    mask = BlockMask(torch.ones(4, 4, dtype=torch.bool).tril(), 16, causal=True)
    q, k, v = (torch.randn(1, 2, 64, 16) for _ in range(3))
    found = [masked_blocks(q, k, v, mask) for _ in range(3)]
    assert len(made) == 1
    torch.testing.assert_close(found[2], block_sparse_attention.reference(q, k, v, mask), rtol=0, atol=0)
    for entry in entries():
        if entry.name.startswith("block_sparse_attention"):
            assert entry.peers[TORCH] is not entry.reference, "the reference makes its mask in every call"


def saxpy_times(monkeypatch, seconds_of):
    """A GPU that is known by name and takes `seconds_of(elements)` for saxpy."""

    class Median:
        def __init__(self, elements):
            self.median = seconds_of(elements)

    monkeypatch.setattr(kernel_prediction, "benchmark", lambda f, inputs, device: Median(inputs()[1].numel()))
    monkeypatch.setattr(kernel_prediction.torch.cuda, "get_device_name", lambda where: "NVIDIA H200")
    monkeypatch.setattr(kernel_prediction.torch, "randn", lambda n, device: torch.empty(n, device="meta"))
    return kernel_prediction.predictor("cuda")


@pytest.mark.parametrize("floor", [2e-6, 20e-6, 60e-6])
def test_a_launch_that_hides_short_times_makes_memory_no_faster(monkeypatch, floor):
    rate = 4.2e12
    made = saxpy_times(monkeypatch, lambda n: max(floor, 12 * n / rate))
    assert made.calibration is not None, made.refused
    assert made.calibration.bandwidth == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize("seconds_of", [lambda n: max(1e-6, 12 * n / 30e12), lambda n: 20e-6])
def test_a_calibration_that_fits_no_such_gpu_is_refused_with_its_reason_and_no_row_is_lost(monkeypatch, seconds_of):
    made = saxpy_times(monkeypatch, seconds_of)
    assert made.calibration is None and made.refused
    row = made(costs.saxpy(1 << 20, 4), torch.float32, 5e-6)
    assert row["not_calibrated"] == made.refused and "data sheet" in row["predicted_for"]
    json.dumps(row, allow_nan=False)


def test_by_estimate_every_entry_once_fits_one_call_and_all_shapes_fit_two():
    assert 0 < kernel_timing.estimate(True) < kernels.FULL_SECONDS
    assert kernel_timing.estimate(True) < kernel_timing.estimate(False) < 2 * kernels.FULL_SECONDS


def test_inputs_are_drawn_where_they_are_used(monkeypatch):
    """Every tensor of every entry: on a host the longest sequences take seconds to draw."""
    drawn = []

    class Generator:
        def __init__(self, device="cpu"):
            self.manual_seed = lambda seed: self

    def randn(*shape, device="cpu", dtype=None, generator=None):
        drawn.append(str(device))
        return torch.empty(*shape, dtype=dtype, device="meta")

    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(torch, "randn", randn)
    for entry in entries():
        drawn.clear()
        with contextlib.suppress(AssertionError, RuntimeError):  # this machine may have no GPU for what else they need
            entry.inputs(entry.timed[0], entry.dtypes[0], "cuda", 0)
        assert set(drawn) == {"cuda"}, entry.name


def test_a_short_run_on_a_gpu_copies_chunks_that_take_longer_than_a_copy_takes_to_begin():
    chunk = STATE_BYTES * parameters("cuda", True) / CHUNKS
    assert chunk >= 16 * 2**20, "at 50 GB/s a chunk must take far longer than 10 µs"
