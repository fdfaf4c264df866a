"""The meter's benchmark: the same bytes by closed form, every sample kept, an absent peer named."""

import json

import pytest
from threeloops.hardware.capability import probe
from threeloops.inner import interpreter

interpreter.enable_without_gpu()

from threeloops.inner.meter import meter
from threeloops_grader.machine.provenance import provenance

from benchmarks import meter as benchmark

pytestmark = pytest.mark.skipif(
    not interpreter.interpreted(),
    reason="the meter counts what Triton's interpreter executes; kernels are compiled here",
)


@pytest.fixture
def kernels():
    # It asks for Triton's interpreter when it is imported: not before this module was to run at all.
    from benchmarks import meter_kernels

    return meter_kernels


def test_the_meter_counts_what_the_closed_forms_say(kernels):
    for case in kernels.cases(quick=True):
        with meter() as traffic:
            case.run()
        assert traffic.total.requested_bytes == case.requested, case.name
        assert traffic.findings == [], case.name


def test_parties_take_turns_and_the_first_round_is_dropped(kernels):
    log = []

    def party(name):
        def run(case):
            log.append((name, case))
            return float(len(log)), 7

        return run

    rows = kernels.in_turns("case", {"a": party("a"), "b": party("b")}, 2)
    assert log == [("a", "case"), ("b", "case")] * 3
    assert rows == [
        {"by": "a", "seconds": [3.0, 5.0], "counted_bytes": 7},
        {"by": "b", "seconds": [4.0, 6.0], "counted_bytes": 7},
    ]


@pytest.mark.parametrize("share", [(1, 4), (3, 4)])
def test_an_absent_peer_is_named(kernels, monkeypatch, share):
    monkeypatch.setattr(kernels, "no_triton_viz", lambda: "triton-viz is not installed")
    rows = list(kernels.rows(True, share))
    assert {row["by"] for row in rows} == {"triton-viz profiler"}
    assert {row["not_measured"] for row in rows} == {"triton-viz is not installed"}
    assert len({row["kernel"] for row in rows}) == len(rows) == 5


def test_a_peer_that_fails_is_named_and_not_run_again(kernels, monkeypatch):
    calls = []

    def fails(case):
        calls.append(case.name)
        raise ValueError("no such thing\nas this kernel")

    monkeypatch.setattr(kernels, "no_triton_viz", lambda: None)
    monkeypatch.setattr(kernels, "with_triton_viz", fails)
    rows = list(kernels.rows(True, (1, 4)))
    assert calls == ["saxpy"]
    assert {row["not_measured"] for row in rows} == {"fails on saxpy: ValueError: as this kernel"}


def test_overheads_are_against_the_plain_runs_of_the_same_process(monkeypatch):
    about = provenance(probe(), "cpu")
    parts = iter(
        [
            [row("plain interpreter", [1.0, 2.0, 9.0]), row("meter", [3.0, 3.0, 1.0], 12)],
            [row("plain interpreter", [4.0]), row("triton-viz profiler", [12.0], 12)],
        ]
    )
    monkeypatch.setattr(benchmark, "run_part", lambda module, **options: next(parts))
    written = json.loads(benchmark.measure(about, quick=True).to_json())
    assert [(each["by"], each["times"]) for each in written["facts"]["overhead"]] == [
        ("meter", 1.5),
        ("triton-viz profiler", 3.0),
    ]
    assert written["facts"]["same_bytes"] is True
    assert {series["by"]: series["samples"] for series in written["series"]} == {
        "plain interpreter": [1.0, 2.0, 9.0],
        "meter": [3.0, 3.0, 1.0],
        "triton-viz profiler": [12.0],
    }
    assert len(written["facts"]["rows"]) == 4, "all samples, the peer's plain runs too"


def row(by, seconds, counted=None):
    about = {"interpreter": "the course's interpreter", "kernel": "saxpy", "requested_bytes": 12}
    return {**about, "by": by, "seconds": seconds, "counted_bytes": counted}
