"""The kernels benchmark on a catalog of two kernels: every row is there, exact where it can be, or says why not."""

import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from threeloops.hardware import device
from threeloops.inner import costs, interpreter
from threeloops.inner.codegen import CompileError
from threeloops.inner.kernels.catalog import Entry
from threeloops.inner.kernels.launching import TARGETS
from threeloops.inner.kernels.rows import saxpy, softmax
from threeloops_grader.machine.provenance import provenance

from benchmarks import (
    kernel_cases,
    kernel_code,
    kernel_error,
    kernel_liger,
    kernel_peers,
    kernel_prediction,
    kernel_timing,
    kernel_traffic,
)
from benchmarks.kernel_part import OURS, TORCH, run_part
from benchmarks.kernels import PUBLISHED, KernelResult, series, summary, with_share_of_copy, without_samples
from benchmarks.result import Unmeasured

WHOLE = (0, 1)
interpreted = pytest.mark.skipif(not interpreter.interpreted(), reason="counting needs Triton's interpreter")


def saxpy_inputs(shape, dtype, where, seed):
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(shape["elements"], generator=generator).to(where, dtype) for _ in range(2))
    return 2.0, x, y


def softmax_inputs(shape, dtype, where, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape["rows"], shape["columns"], generator=generator).to(where, dtype),)


SAXPY = Entry(
    "saxpy", saxpy.saxpy, saxpy.reference, saxpy_inputs,
    lambda shape, dtype: costs.saxpy(shape["elements"], dtype.itemsize),
    metered=({"elements": 4096}, {"elements": 129}),
    compiled=({"elements": 1 << 20},),
    timed=({"elements": 4096},),
)  # fmt: skip
SOFTMAX = Entry(
    "softmax", softmax.softmax, softmax.reference, softmax_inputs,
    lambda shape, dtype: costs.softmax(shape["rows"], shape["columns"], dtype.itemsize),
    metered=({"rows": 5, "columns": 127},),
    compiled=({"rows": 4096, "columns": 4096},),
    timed=({"rows": 8, "columns": 128},),
    peers={TORCH: lambda x: torch.softmax(x, -1)},
)  # fmt: skip
BACKWARD = replace(
    SOFTMAX, name="softmax_backward", launch=softmax.softmax_backward, reference=softmax.backward_reference,
    inputs=lambda shape, dtype, where, seed: softmax_inputs(shape, dtype, where, seed) * 2,
    cost=lambda shape, dtype: softmax.backward_cost(shape["rows"], shape["columns"], dtype.itemsize), peers={},
)  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    """A catalog of three entries in place of the course's own."""
    for module in (kernel_cases, kernel_timing):
        monkeypatch.setattr(module, "entries", lambda: (SAXPY, SOFTMAX, BACKWARD))


@pytest.fixture(scope="module")
def about():
    from threeloops.hardware.capability import probe

    return provenance(probe(), "cpu")


def test_every_case_of_the_full_run_falls_into_one_share(small):
    def cases(share, quick=False):
        return [(e.name, dict(s), d) for e, s, d in kernel_cases.cases(lambda entry: entry.metered, quick, share)]

    every = cases(WHOLE)
    assert len(every) == 12, "two shapes of saxpy, one of the others, three dtypes each"
    shared = [case for share in range(4) for case in cases((share, 4))]
    assert sorted(map(str, shared)) == sorted(map(str, every))
    quick = [(name, dtype) for name, _, dtype in cases(WHOLE, quick=True)]
    assert quick == [(name, torch.bfloat16) for name in ("saxpy", "softmax", "softmax_backward")]


@interpreted
def test_saxpy_moves_three_elements_a_position_and_nothing_else(small):
    rows = [row for row in kernel_traffic.rows(False, WHOLE) if row["kernel"] == "saxpy"]
    assert len(rows) == 6
    for row in rows:
        itemsize = getattr(torch, row["dtype"]).itemsize
        assert (
            row["requested_bytes"]
            == row["unique_bytes"]
            == row["least_bytes"]
            == 3 * row["shape"]["elements"] * itemsize
        )
        assert row["findings"] == [] and row["dot_flops"] == 0
    json.dumps(rows, allow_nan=False)


@interpreted
def test_an_error_is_measured_against_float64_and_torch_with_the_same_bits(small, monkeypatch):
    def wrong(x):
        return softmax.softmax(x) * 1.01

    right = [row for row in kernel_error.rows(False, WHOLE) if row["kernel"] == "softmax"]
    assert {row["dtype"] for row in right} == {"float16", "bfloat16", "float32"}
    assert all(row["rms"] > 0 and 0 < row["rms_ratio"] <= 3 for row in right)
    monkeypatch.setattr(kernel_cases, "entries", lambda: (replace(SOFTMAX, launch=wrong),))
    broken = list(kernel_error.rows(False, WHOLE))
    assert all(row["rms_ratio"] > 1.5 for row in broken), "one percent off goes unnoticed"


def test_an_exact_peer_gives_no_number_of_times():
    assert kernel_error.ratio(0.0, 0.0) == 1.0
    assert kernel_error.ratio(1e-3, 0.0) is None
    assert kernel_error.ratio(3e-3, 1e-3) == pytest.approx(3)


def test_each_kernel_is_compiled_for_each_target(small, monkeypatch):
    monkeypatch.setattr(kernel_cases, "entries", lambda: (replace(SAXPY, dtypes=(torch.bfloat16,)),))
    rows = list(kernel_code.rows(False, WHOLE))
    assert [row["target"] for row in rows] == list(TARGETS)
    for row in rows:
        assert row["by"] == OURS and row["launched"] == "saxpy_kernel" and row["dtype"] == "bfloat16"
        assert row["spilled_bytes"] == 0 and row["fits"] and row["widest_load"] == row["widest_store"] == 128
        assert row["registers"] > 0 and 0 < row["occupancy"] <= 1 and row["tensor_cores"] is None
    json.dumps(rows, allow_nan=False)


def test_a_kernel_that_does_not_compile_is_a_row_and_stops_nothing(small, monkeypatch):
    def refuse(call, target):
        raise CompileError("k", target, "no such instruction\nand a trace")

    monkeypatch.setattr(kernel_code, "inspect", refuse)
    rows = list(kernel_code.rows(True, WHOLE))
    assert [row["not_compiled"] for row in rows] == ["k does not compile for sm_90: no such instruction"] * 3
    facts = {"traffic": [], "error": [], "time": [], "code": rows}
    assert summary(facts)["compiled"] == {"of": 3, "are": 0, "not": ["saxpy", "softmax", "softmax_backward"]}


def test_what_cannot_be_compared_with_says_why(small, monkeypatch):
    monkeypatch.setattr(kernel_liger, "no_liger", lambda: "liger-kernel is not installed")
    rows = list(kernel_liger.rows(True, WHOLE))
    assert [row["kernel"] for row in rows] == ["softmax"], "Liger has no saxpy"
    assert rows[0]["not_compiled"] == "liger-kernel is not installed"


def test_a_foreign_kernel_that_needs_its_gpu_is_reported_and_stops_nothing(small, monkeypatch):
    def broken(x):
        raise RuntimeError("no NVIDIA driver\nand a long story")

    monkeypatch.setattr(kernel_liger, "no_liger", lambda: None)
    monkeypatch.setattr(kernel_liger, "LIGER_FUNCTIONS", {"softmax": broken})
    (row,) = kernel_liger.rows(True, WHOLE)
    assert row["not_compiled"] == "not launched without a GPU: RuntimeError: no NVIDIA driver"


@pytest.mark.slow
@pytest.mark.skipif(bool(kernel_peers.no_liger()), reason="liger-kernel is not installed; `make peers` does")
def test_ligers_kernels_pass_the_same_gate(small):
    rows = list(kernel_liger.rows(True, WHOLE))
    assert {row["launched"] for row in rows if "launched" in row} >= {"_softmax_single_block_forward_kernel"}
    assert all(row["registers"] > 0 and row["by"] == "liger" for row in rows)


def test_without_a_gpu_every_time_is_there_and_unmeasured(small, monkeypatch):
    monkeypatch.setattr(kernel_timing, "device", lambda: "cpu")
    rows = list(kernel_timing.rows(False, WHOLE))
    found = {(row["kernel"], row["pass"], row["by"]) for row in rows}
    assert ("copy", "forward", TORCH) in found
    assert all(0 < r["predicted_low"] <= r["predicted_high"] for r in rows if r["by"] == OURS)
    assert {("saxpy", "forward", by) for by in (OURS, TORCH, "torch.compile")} <= found
    assert {("softmax", "forward + backward", by) for by in (OURS, TORCH, "liger")} <= found
    assert not [name for name, _, _ in found if name.endswith("_backward")]
    assert {row["not_measured"] for row in rows} == {"no CUDA device"}


@interpreted
def test_on_a_device_every_party_is_timed_or_says_why_not(small, monkeypatch):
    monkeypatch.setattr(kernel_timing, "device", lambda: "cpu:0")  # timed like a GPU, with the host's clock
    monkeypatch.setattr(kernel_timing, "predictor", lambda where: kernel_prediction.predictor("cpu"))
    monkeypatch.setattr(kernel_timing, "copy_row", lambda where: {})
    monkeypatch.setattr(kernel_peers, "no_liger", lambda: "absent")
    _, *rows = kernel_timing.rows(True, WHOLE)
    found = {(row["kernel"], row["pass"], row["by"]): row for row in rows}
    assert len(found) == 8, "saxpy by two, softmax by three in two passes"
    for (kernel, direction, by), row in found.items():
        if by == "liger":
            assert row["not_measured"] == "absent"
        else:
            assert len(row["seconds"]) == kernel_timing.QUICK_SAMPLES, (kernel, direction, by)
        assert ("prediction_error" in row) == (by == OURS)


@interpreted
def test_what_is_compiled_for_one_shape_is_forgotten_before_the_next(small, monkeypatch):
    """torch stops compiling a function after eight shapes and runs it eagerly, under the same name."""
    done = []
    by = dict.fromkeys((TORCH, "flex_attention", "torch.compile"), SOFTMAX.peers[TORCH])
    monkeypatch.setattr(kernel_cases, "entries", lambda: (SOFTMAX,))
    monkeypatch.setattr(kernel_timing, "device", lambda: "cpu:0")
    monkeypatch.setattr(kernel_timing, "predictor", lambda where: kernel_prediction.predictor("cpu"))
    monkeypatch.setattr(kernel_timing, "copy_row", lambda where: {})
    monkeypatch.setattr(kernel_timing, "parties", lambda entry, compiled: by)
    monkeypatch.setattr(torch._dynamo, "reset", lambda: done.append("reset"))
    for row in kernel_timing.rows(True, WHOLE):
        if row:  # the copy's is empty here
            done.append(row["by"])
    assert done == ["torch", "flex_attention", "reset", "torch.compile", "reset"] * 2, "in each of the two passes"


def test_a_shape_that_nobody_can_compute_is_reported(small, monkeypatch):
    def too_large(*arguments):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(kernel_timing, "device", lambda: "cpu:0")
    monkeypatch.setattr(kernel_timing, "predictor", lambda where: kernel_prediction.predictor("cpu"))
    monkeypatch.setattr(kernel_timing, "copy_row", lambda where: {})
    monkeypatch.setattr(kernel_cases, "entries", lambda: (replace(SAXPY, inputs=too_large),))
    _, *rows = kernel_timing.rows(True, WHOLE)
    assert [row["not_measured"] for row in rows] == ["too large for this GPU's memory"] * 2


def test_both_passes_cost_both(small):
    (forward, both) = kernel_timing.passes(SOFTMAX, {"rows": 8, "columns": 128}, torch.float32)
    assert both[1].bytes == forward[1].bytes + 3 * 8 * 128 * 4


def test_a_time_has_its_raw_samples_and_only_if_the_result_is_right():
    shape, where = SOFTMAX.timed[0], device()
    inputs = SOFTMAX.inputs(shape, torch.float32, where, 0)
    expected = torch.softmax(inputs[0], -1)
    for direction in (kernel_timing.FORWARD, kernel_timing.BOTH):
        measured = kernel_timing.timed(SOFTMAX.launch, inputs, expected, direction, where, True)
        assert len(measured["seconds"]) == kernel_timing.QUICK_SAMPLES and min(measured["seconds"]) > 0
    wrong = kernel_timing.timed(lambda x: torch.softmax(x, 0), inputs, expected, "forward", where, True)
    assert wrong["not_measured"].startswith("WrongResult: differs from torch by")
    absent = kernel_timing.timed("not installed", inputs, expected, "forward", where, True)
    assert absent == {"not_measured": "not installed"}


def timed_row(by, seconds):
    about = {"kernel": "softmax", "shape": {"rows": 8}, "dtype": "float32", "pass": "forward"}
    return {**about, "by": by, "tensor_core_kernel": False, "bytes": 8192, "flops": 1, "seconds": seconds}


@interpreted
def test_the_result_prints_and_is_written_with_every_sample(small, about):
    times = [timed_row(OURS, [1e-6, 2e-6, 3e-6]), timed_row(TORCH, [4e-6, 4e-6, 4e-6])]
    times.append({**timed_row(TORCH, [1e-6]), "kernel": "copy"})
    code = {"launched": "k", "target": "sm_90", "num_warps": 4, "num_stages": 1, "registers": 32, "spilled_bytes": 8,
            "shared_bytes": 0, "shared_limit": 232448, "fits": True, "widest_load": 128, "widest_store": None,
            "tensor_cores": None, "tensor_core_instructions": 0, "occupancy": 1.0, "limited_by": "warps",
            "tensor_core_kernel": False, "by": OURS}  # fmt: skip
    traffic, error = list(kernel_traffic.rows(True, WHOLE)), list(kernel_error.rows(True, WHOLE))
    facts = {
        "traffic": traffic,
        "code": [{**traffic[0], **code}, {**traffic[0], "by": "liger", "not_compiled": "absent"}],
        "error": error,
        "time": with_share_of_copy([without_samples(row) for row in times]) + PUBLISHED,
    }
    facts["summary"] = summary(facts)
    assert facts["summary"]["compiled without spills"] == {"of": 1, "are": 0, "not": ["k"]}
    result = KernelResult("kernels", about, {"quick": True}, series(times), facts)
    written = json.loads(result.to_json())
    ours = next(row for row in written["series"] if row["by"] == OURS)
    assert ours["samples"] == [1e-6, 2e-6, 3e-6] and ours["times_better"] == pytest.approx(2)
    console = Console(width=240, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(result.tables())
    text = console.export_text()
    assert "saxpy" in text and "4.1 GB/s" in text and "published: TLX, H100" in text and "588 TFLOP/s" in text
    assert "50%" in text, "ours moves half as many bytes a second as the copy"
    assert "compiled without spills: 0 of 1; not: k" in text


def test_a_part_that_fails_says_so(monkeypatch):
    with pytest.raises(Unmeasured, match="kernel_that_is_not_there"):
        run_part("kernel_that_is_not_there", quick=True, seconds=60)


def test_every_entry_of_the_course_can_be_gone_over():
    """What the parts rely on, without running a kernel."""
    names = [entry.name for entry in kernel_cases.entries()]
    assert len(set(names)) == len(names)
    for entry in kernel_cases.entries():
        assert entry.timed and (entry.metered or entry.name.endswith(kernel_cases.GRADIENTS)), entry.name
        for shapes in (entry.metered, entry.compiled, entry.timed):
            for shape in shapes:
                assert entry.cost(shape, entry.dtypes[0]).bytes > 0, (entry.name, shape)
            assert list(kernel_timing.passes(entry, entry.timed[0], entry.dtypes[0])), entry.name
