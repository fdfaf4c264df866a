"""Liger's operations in the meter: each runs, is right, and asks for the bytes that were counted by hand."""

import json

import pytest
import torch
from threeloops.inner import interpreter

interpreter.enable_without_gpu()

from benchmarks import kernel_peers, liger
from benchmarks.__main__ import main
from benchmarks.liger_operations import OPERATIONS
from benchmarks.result import Unmeasured

pytestmark = pytest.mark.skipif(
    not interpreter.interpreted(),
    reason="the meter counts what Triton's interpreter executes; kernels are compiled here",
)
LIGER = pytest.mark.skipif(bool(kernel_peers.no_liger()), reason="liger-kernel is not installed; `make peers` does")


@pytest.fixture
def part():
    # It repairs Triton's interpreter when it is imported: not before this module was to run at all.
    from benchmarks import liger_part

    return liger_part


@LIGER
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_an_operation_is_right_and_its_bytes_are_those_counted_by_hand(part, operation):
    torch.manual_seed(1)
    inputs = operation.inputs()
    results, said = part.metered(operation, inputs)
    assert said == {"requested_bytes": operation.requested, "findings": []}
    assert part.error_over_tolerance(operation, results, operation.torch(inputs)) <= 1


@LIGER
def test_a_wrong_result_exceeds_the_tolerance(part):
    torch.manual_seed(1)
    operation = OPERATIONS[0]
    inputs = operation.inputs()
    results, expected = operation.liger(inputs), operation.torch(inputs)
    results[1] = results[1] * 1.001
    assert part.error_over_tolerance(operation, results, expected) > 1


def row(by, seconds, **said):
    return {"operation": "softmax", "counted_by_hand": 96, "by": by, "seconds": seconds, **said}


def table(**said):
    metered = {"requested_bytes": 96, "findings": [], "error_over_tolerance": 0.5} | said
    peer = {"requested_bytes": 80, "error_over_tolerance": 0.5}
    return liger.by_operation([
        row(liger.PLAIN, [2.0, 1.0, 4.0]), row(liger.METER, [3.0], **metered),
        row(liger.PLAIN, [1.0]), row(liger.TRITON_VIZ, [4.0], **peer),
    ])  # fmt: skip


def test_each_party_is_compared_with_the_plain_interpreter_of_its_own_process():
    (line,) = table()
    assert line["meter"]["times"] == 1.5 and line["triton_viz"]["times"] == 4.0
    assert liger.is_right(line)
    counts = liger.summary([line])
    assert counts["bytes as counted by hand"] == {"of": 1, "are": 1, "not": []}
    assert counts["bytes as counted by hand, by triton-viz"] == {"of": 1, "are": 0, "not": ["softmax"]}
    assert counts["metered in less time than triton-viz takes"] == {"of": 1, "are": 1, "not": []}


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"requested_bytes": 100}, "bytes as counted by hand"),
        ({"error_over_tolerance": 1.5}, "values within Liger's tolerances"),
        ({"error_over_tolerance": float("nan")}, "values within Liger's tolerances"),
        ({"findings": ["a race"]}, "without findings"),
        ({"fails": "RuntimeError: no"}, "run in the meter"),
    ],
)
def test_an_operation_that_is_not_right_is_named(said, what):
    (line,) = table(**said)
    assert not liger.is_right(line)
    assert liger.summary([line])[what] == {"of": 1, "are": 0, "not": ["softmax"]}


def test_a_party_that_fails_is_a_row_and_stops_nothing(part, monkeypatch):
    def refuse(operation, inputs):
        raise RuntimeError("no such instruction\nand a trace")

    monkeypatch.setattr(part, "no_liger", lambda: None)
    monkeypatch.setattr(part, "plain", lambda operation, inputs: (operation.torch(inputs), {}))
    monkeypatch.setattr(part, "metered", refuse)
    plain, metered = part.rows(OPERATIONS[0], 2, peer=False)
    assert len(plain["seconds"]) == 2 and plain["error_over_tolerance"] == 0
    assert metered["fails"] == "RuntimeError: no such instruction"


def test_without_liger_nothing_is_measured(part, monkeypatch):
    monkeypatch.setattr(part, "no_liger", lambda: "liger-kernel is not installed")
    rows = list(part.rows(OPERATIONS[0], 1, peer=False))
    assert [row["not_measured"] for row in rows] == ["liger-kernel is not installed"]
    monkeypatch.setattr(liger, "run_part", lambda *_, **__: rows)
    with pytest.raises(Unmeasured, match="2 rows are missing, the first: liger-kernel is not installed"):
        liger.measure(None)


def test_kernels_with_peers_runs_liger(monkeypatch, tmp_path, capsys):
    rows = [row(liger.PLAIN, [1.0]), row(liger.METER, [3.0], requested_bytes=100, findings=[], error_over_tolerance=0)]
    monkeypatch.setattr(liger, "run_part", lambda *_, share, **__: rows if share == (0, 2) else [])
    assert main(["kernels", "--peers", "--out", str(tmp_path)]) == 1, "an operation whose bytes differ fails the run"
    (file,) = tmp_path.iterdir()
    assert file.name == "liger.json"
    assert json.loads(file.read_text())["facts"]["summary"]["bytes as counted by hand"]["not"] == ["softmax"]
    assert "liger: 1 cases failed" in capsys.readouterr().out
