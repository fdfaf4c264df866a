"""Lab 01: its recorded traces are consistent and do the published arithmetic."""

import json

import pytest
from lab_source import load

DATA = load("01_roofline").folder / "data"


@pytest.mark.parametrize("path", sorted(DATA.glob("resnet50_*.json")), ids=lambda path: path.stem)
def test_a_trace_is_consistent(path):
    trace = json.loads(path.read_text())
    assert (trace["source"] == "synthetic") == ("synthetic" in path.stem) == ("synthetic" in trace["title"])
    events = trace["events"]
    for index, (_, parent, start, duration, device_us, moved, flops) in enumerate(events):
        assert parent < index and min(duration, device_us, moved, flops) >= 0
        if parent >= 0:
            # Times are rounded to nanoseconds.
            assert (
                events[parent][2] - 0.01 <= start and start + duration <= events[parent][2] + events[parent][3] + 0.01
            )
    assert [event[2] for event in events] == sorted(event[2] for event in events)
    assert [moment for moment, _ in trace["allocations"]] == sorted(moment for moment, _ in trace["allocations"])
    assert any(event[4] for event in events) == (trace["device"] == "cuda")


def test_the_recorded_convolutions_do_the_published_arithmetic():
    """ResNet-50 is 4.09 G multiply-adds an image (He et al. 2015, stride in the 3×3), nearly all in convolutions."""
    for kind in ("eager", "compiled"):
        trace = json.loads((DATA / f"resnet50_cpu_{kind}.json").read_text())
        assert sum(event[6] for event in trace["events"]) / (16 * 2 * 4.09e9) == pytest.approx(1.0, abs=0.01)
