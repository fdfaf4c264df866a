"""Lab 01: its recorded traces are consistent and do the published arithmetic."""

import json
from dataclasses import replace

import pytest
from lab_source import load
from threeloops.lab.drawings.inner import roofline

SOURCE = load("01_roofline")
DATA = SOURCE.folder / "data"


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


@pytest.mark.parametrize("path", sorted(DATA.glob("*_synthetic.json")), ids=lambda path: path.stem)
def test_synthetic_kernels_reach_at_most_the_stated_shares_of_the_roofs(path):
    trace = json.loads(path.read_text())
    machine = trace["machine"]
    for _, _, _, _, device_us, moved, flops in trace["events"]:
        floor = 1e6 * max(flops / (0.65 * machine["peak_flops"]), moved / (0.9 * machine["bandwidth"]))
        assert device_us == pytest.approx(1.8 + floor, rel=0.15) if moved else device_us == 0


def test_a_larger_batch_does_more_of_the_same():
    """Weights are read once, whatever the batch is."""
    small, large = (json.loads((DATA / f"resnet50_gpu_eager_{n}_synthetic.json").read_text()) for n in (16, 128))
    for few, many in zip(small["events"], large["events"], strict=True):
        assert (few[0], few[1], few[6] * 8) == (many[0], many[1], many[6])
        assert few[5] <= many[5] <= 8 * few[5]
    weights = sum(8 * few[5] - many[5] for few, many in zip(small["events"], large["events"], strict=True)) / 7 / 2
    assert weights == pytest.approx(25.5e6, rel=0.01)  # torchvision: 25.6 million, 0.1 million of them in batch norms


@pytest.fixture
def model_answers(monkeypatch):
    """The names of the setup cell and of the model answers."""
    monkeypatch.chdir(SOURCE.folder)
    names = {}
    for text in (SOURCE.setup, *SOURCE.solutions.values()):
        exec(text, names)
    return names


@pytest.mark.parametrize("images", [16, 128])
def test_the_reference_of_the_last_picture_is_what_the_model_answers_do(model_answers, images):
    profile = model_answers["load_profile"](f"gpu_eager_{images}_synthetic")
    trace = roofline.calls_of(profile, model_answers["Call"])
    assert model_answers["wall_us"](trace) == pytest.approx(profile.wall_us, rel=0.01)
    pieces = [model_answers[name] for name in ("Span", "classify", "choose_fix", "wall_us")]
    rounds = roofline.repair(trace, profile.roof, *pieces)
    assert [replace(one, wall_us=round(one.wall_us, 1)) for one in rounds] == roofline.REFERENCE[images]
