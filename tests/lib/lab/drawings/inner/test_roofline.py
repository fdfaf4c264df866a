"""Repairs of a trace, by hand, and the pictures of lab 01."""

from dataclasses import dataclass, replace
from itertools import combinations
from types import SimpleNamespace

import pytest
from matplotlib.colors import to_hex
from threeloops.figures import palette
from threeloops.hardware import accelerator
from threeloops.inner.costs import Work
from threeloops.inner.roofline import Roofline
from threeloops.lab.drawings.inner import roofline
from threeloops.lab.drawings.inner.roofline import Judged, Round, after_fix, calls_of, judge, repair

ROOF = SimpleNamespace(peak_flops=1e15, bandwidth=2e12)  # 1e9 FLOP or 2e6 bytes per µs


@dataclass(frozen=True)
class Call:
    issue_us: float
    busy_us: float
    flops: float
    bytes: float
    waits: bool = False


MEMORY = Call(6.0, 50.0, 4e7, 8e7)  # its bytes take 40 µs
MATMUL = Call(6.0, 40.0, 3.2e10, 3e7)  # its FLOPs take 32 µs
SLOW = Call(6.0, 30.0, 2e7, 1.2e7)  # its bytes take 6 µs


def test_a_graph_shortens_every_launch_but_the_first_and_those_after_a_wait():
    trace = [MEMORY, replace(MATMUL, waits=True), SLOW, SLOW]
    assert [call.issue_us for call in after_fix(trace, "CUDA graph", ROOF)] == [6.0, 0.5, 6.0, 0.5]


def test_without_waiting_nothing_else_changes():
    trace = [replace(MEMORY, waits=True), MATMUL]
    assert after_fix(trace, "no waiting", ROOF) == [MEMORY, MATMUL]


def test_a_faster_format_halves_kernels_that_compute_explains():
    other = replace(MATMUL, busy_us=60.0)  # 32 of 60 µs are too little
    halved = replace(MATMUL, busy_us=20.0, flops=1.6e10)
    assert after_fix([MEMORY, MATMUL, other, SLOW], "faster format", ROOF) == [MEMORY, halved, other, SLOW]


def test_better_kernels_are_explained_by_80_percent():
    assert after_fix([MEMORY, SLOW], "better kernels", ROOF) == [MEMORY, replace(SLOW, busy_us=7.5)]


def test_neighbours_of_little_arithmetic_become_one_kernel_as_long_as_the_longest():
    short = replace(MEMORY, busy_us=10.0, bytes=2e7)
    trace = [short, replace(MEMORY, issue_us=9.0), MATMUL, SLOW]
    assert after_fix(trace, "fusion", ROOF) == [MEMORY, MATMUL, SLOW]


def test_a_wait_inside_a_run_prevents_fusion_and_one_at_its_end_stays():
    waiting = replace(SLOW, waits=True)
    assert after_fix([waiting, SLOW], "fusion", ROOF) == [waiting, SLOW]
    assert after_fix([SLOW, waiting], "fusion", ROOF) == [waiting]


def span(flops, bytes, busy_us, wall_us):
    return SimpleNamespace(flops=flops, bytes=bytes, busy_us=busy_us, wall_us=wall_us)


def busy_us(trace):
    return sum(call.busy_us for call in trace)


def test_repairs_end_when_a_fix_saves_less_than_a_tenth():
    def classify(one, roof):
        return SimpleNamespace(bound=f"{one.busy_us:g} of {one.wall_us:g} µs")

    fixes = iter(["better kernels", "fusion", "no waiting"])
    trace = [SLOW, MATMUL, MEMORY]
    rounds = repair(trace, ROOF, span, classify, lambda *_: next(fixes), busy_us)
    assert rounds == [Round("120 of 120 µs", "as it was", 120.0), Round("97.5 of 97.5 µs", "better kernels", 97.5)]
    assert list(fixes) == ["no waiting"]
    assert trace == [SLOW, MATMUL, MEMORY]


def test_repairs_end_when_a_fix_comes_again():
    rounds = repair(
        [MATMUL], ROOF, span, lambda *_: SimpleNamespace(bound="compute"), lambda *_: "faster format", busy_us
    )
    assert [one.fix for one in rounds] == ["as it was", "faster format"]


def event(name, parent, start, cpu, device=0.0, moved=0, flops=0):
    return SimpleNamespace(
        name=name, parent=parent, start_us=start, cpu_us=cpu, device_us=device, bytes=moved, flops=flops
    )


def test_launches_come_7_5_microseconds_after_the_start_of_their_operators():
    events = [event("view", -1, 0.0, 2.5), event("conv", -1, 3.5, 9.0, 30.0, 8, 4), event("relu", -1, 13.5, 8.0, 5.0)]
    assert calls_of(SimpleNamespace(events=events), Call) == [Call(11.0, 30.0, 4, 8), Call(10.0, 5.0, 0, 0)]


@pytest.mark.parametrize(("device", "busy"), [("cpu", 60.0), ("cuda", 35.0)])
def test_a_pass_is_busy_while_an_operator_runs_or_a_kernel(device, busy):
    events = [event("aten::a", -1, 0.0, 50.0, 0.0, 8, 4), event("b", 0, 1.0, 40.0, 35.0), event("c", -1, 60.0, 10.0)]
    profile = SimpleNamespace(events=events, device=device, wall_us=80.0, roof=ROOF)
    cost = SimpleNamespace(name="aten::a", calls=2, busy_us=7.0, flops=4, bytes=8)
    whole, one = judge(profile, span, lambda given: [cost] * (given is profile), lambda one, roof: one.busy_us)
    assert (whole.name, whole.verdict, whole.span.wall_us) == ("the whole pass", busy, 80.0)
    assert (one.name, one.verdict, one.span.wall_us) == ("2 × a", 7.0, 7.0)


def test_verdicts_are_drawn_over_wall_time_busy_time_and_floor():
    verdict = SimpleNamespace(bound="host", floor_us=200.0, explains=0.8)
    drawn = roofline.draw_judged({"a pass": [Judged("norm", span(1e9, 4e8, 250.0, 600.0), verdict)]})
    axes = drawn.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [600.0, 250.0, 200.0]
    assert to_hex(axes.patches[2].get_facecolor()) == palette.purple
    assert axes.texts[0].get_text().strip() == "host: explains 0.80"
    assert axes.get_xlabel().startswith("µs (outline: wall time")


def test_repairs_are_drawn_beside_the_reference():
    own = [Round("host", "as it was", 4000.0), Round("memory", "fusion", 3000.0)]
    reference = [Round("host", "as it was", 4000.0), Round("memory", "CUDA graph", 1000.0)]
    drawn = roofline.draw_repairs({"a pass": (own, reference)}, {"a pass": ("compiled", 900.0)})
    axes = drawn.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [4.0, 3.0]
    assert [line.get_xdata()[0] for line in axes.lines] == [4.0, 1.0, 0.9]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["as it was", "fusion"]
    assert axes.texts[-1].get_text().strip() == "compiled: 0.90 ms"


def test_the_reference_may_take_more_rounds():
    own = [Round("host", "as it was", 4000.0)]
    drawn = roofline.draw_repairs({"a pass": (own, [*own, Round("memory", "CUDA graph", 1000.0)])})
    assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == ["as it was", "(stopped)"]


def test_rows_say_which_floor_is_the_longer_one():
    assert roofline.draw_rows(256).axes[0].get_title("left").endswith("limited by bytes")
    assert roofline.draw_rows(512).axes[0].get_title("left").endswith("limited by math")


def test_a_machine_without_the_format_says_so():
    (axes,) = roofline.draw_roofline("V100 SXM2", "bf16", "LayerNorm (tokens × 4096)", 6).axes
    assert "no BF16" in axes.texts[0].get_text()
    (axes,) = roofline.draw_roofline("H100 SXM", "bf16", "LayerNorm (tokens × 4096)", 6).axes
    assert "memory-bound, 0.583% of peak" in axes.get_title("left")


def test_measured_points_lie_below_the_roof():
    roof = Roofline(accelerator("H100 SXM"), "bf16")
    work = Work(bytes=3.35e9, flops=1e9)
    (axes,) = roofline.draw_measured(roof, {"copy": (work, 2e-3)}).axes
    assert "copy: 50%" in [text.get_text() for text in axes.texts]


def test_labels_of_measured_points_keep_apart():
    roof = Roofline(accelerator("H100 SXM"), "bf16")
    close = {name: (Work(bytes=3.35e9 * share, flops=1e9), 2e-3) for name, share in (("add", 1.0), ("scale", 1.02))}
    far = {"matmul": (Work(bytes=1e6, flops=1e9), 2e-6)}
    fig = roofline.draw_measured(roof, {"add again": close["add"], **close, **far})
    fig.canvas.draw()
    boxes = [text.get_window_extent() for text in fig.axes[0].texts]
    assert len(boxes) == 5
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_the_peak_of_memory_is_named_in_the_picture():
    profile = SimpleNamespace(
        allocations=[SimpleNamespace(time_us=1000.0 * n, bytes=size) for n, size in ((1, 4e6), (2, 5e6), (3, -9e6))]
    )
    (axes,) = roofline.draw_held({"eager": (palette.blue, profile)}).axes
    assert axes.texts[0].get_text() == "eager: 9 MB, first reached after 2 ms"
