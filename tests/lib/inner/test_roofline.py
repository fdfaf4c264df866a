"""The roofline and the costs under it: closed forms, checked against counting by hand and by machine."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.hardware import Accelerator, accelerator
from threeloops.inner import roofline
from threeloops.inner.costs import saxpy
from threeloops.inner.roofline import Roofline, Work, classify

rates = st.floats(1e6, 1e16)
intensities = st.floats(0, 1e6)
sizes = st.integers(1, 300)
# None at all or at least one: a thousandth of a FLOP at a million a second is no time that a float can divide.
works = st.builds(Work, *(st.just(0.0) | st.floats(1, most) for most in (1e15, 1e18)))
TOY = Accelerator(name="toy", vendor="", year=None, memory_bytes=1, memory_bandwidth=100.0, rates={"fp32": 1000.0})


def roof(peak, bandwidth):
    return Roofline(replace(TOY, rates={"fp32": peak}, memory_bandwidth=bandwidth), "fp32")


@given(intensities, rates, rates)
def test_attainable_is_the_lower_of_two_lines(intensity, peak, bandwidth):
    reached = roof(peak, bandwidth).attainable(intensity)
    assert reached in (peak, intensity * bandwidth) and reached <= peak and reached <= intensity * bandwidth


@given(intensities, intensities, rates, rates)
def test_attainable_never_falls(one, other, peak, bandwidth):
    low, high = sorted((one, other))
    assert roof(peak, bandwidth).attainable(low) <= roof(peak, bandwidth).attainable(high)
    assert roof(peak, bandwidth).attainable(low) <= roof(2 * peak, bandwidth).attainable(low)
    assert roof(peak, bandwidth).attainable(low) <= roof(peak, 2 * bandwidth).attainable(low)


@given(rates, rates)
def test_the_lines_meet_at_the_ridge(peak, bandwidth):
    ridge = roof(peak, bandwidth).ridge_point
    assert ridge * bandwidth == pytest.approx(peak)
    assert roof(peak, bandwidth).attainable(ridge * 2) == peak > roof(peak, bandwidth).attainable(ridge / 2)


@given(works.filter(lambda work: work.flops > 1), rates, rates)
def test_the_time_floor_is_the_work_at_the_attainable_rate(work, peak, bandwidth):
    floor = roof(peak, bandwidth).time_floor(work)
    assert floor == max(work.flops / peak, work.bytes / bandwidth)
    assert work.flops / floor == pytest.approx(roof(peak, bandwidth).attainable(work.intensity), rel=1e-9)


def test_ridge_points_of_the_table():
    ridges = {("V100", "fp16"): 138.9, ("A100", "bf16"): 153.0, ("H100", "bf16"): 295.3, ("H200", "bf16"): 206.1}
    for (name, dtype), ridge in ridges.items():
        assert Roofline(accelerator(name), dtype).ridge_point == pytest.approx(ridge, abs=0.1)


def test_impossible_rates_are_refused():
    for peak, bandwidth, name in (
        (0, 1, "peak_flops = 0"),
        (1, -1, "bandwidth = -1"),
        (math.nan, 1, "peak_flops = nan"),
        (1, math.inf, "bandwidth = inf"),
    ):
        with pytest.raises(ValueError, match=name):
            roof(peak, bandwidth)
    with pytest.raises(ValueError, match="intensity = -1"):
        Roofline(TOY, "fp32").attainable(-1)
    with pytest.raises(LookupError, match="no TF32"):
        Roofline(accelerator("V100"), "tf32")


@given(works, works, works)
def test_work_adds_up(one, two, three):
    assert one + two == two + one == sum([one, two])
    assert ((one + two) + three).flops == pytest.approx((one + (two + three)).flops)
    assert one * 2 == 2 * one == one + one
    assert (one + two).bytes == one.bytes + two.bytes


@given(works, works, rates, rates)
def test_doing_two_things_at_once_is_never_slower_than_one_after_the_other(one, two, peak, bandwidth):
    floor = roof(peak, bandwidth).time_floor
    together, apart = floor(one + two), floor(one) + floor(two)
    assert max(floor(one), floor(two)) <= together <= apart * (1 + 1e-12)


def test_intensity_at_the_edges():
    assert Work(4, 2).intensity == 0.5 and Work(0, 1).intensity == math.inf and Work(1, 0).intensity == 0
    with pytest.raises(ValueError, match="no work"):
        _ = Work(0, 0).intensity
    for wrong in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="bytes = "):
            Work(wrong, 1)
        with pytest.raises(ValueError, match="flops = "):
            Work(1, wrong)
    for wrong in (lambda: Work(1, 1) + 1, lambda: 1 + Work(1, 1), lambda: Work(1, 1) * Work(1, 1)):
        with pytest.raises(TypeError):
            wrong()


class Counted:
    """Counts the multiply-adds of a textbook triple loop and the elements that it touches, once each."""

    def __init__(self, m, k, n):
        left, right = np.ones((m, k)), np.ones((k, n))
        out, self.flops = np.zeros((m, n)), 0
        for row in range(m):
            for column in range(n):
                for inner in range(k):
                    out[row, column] += left[row, inner] * right[inner, column]
                    self.flops += 2
        self.elements = left.size + right.size + out.size


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 5, 7), (8, 1, 9), (1, 13, 1)])
def test_matmul_is_what_a_triple_loop_counts(m, k, n):
    counted = Counted(m, k, n)
    assert roofline.matmul(m, k, n, 4) == Work(4 * counted.elements, counted.flops)


@given(st.integers(1, 4096))
def test_a_square_matmul_has_intensity_n_over_three(n):
    assert roofline.matmul(n, n, n, 2).intensity == pytest.approx(n / 3)
    assert roofline.matmul(1, n, n, 2).intensity < 1.0


@given(sizes, sizes)
def test_rowwise_operations_read_once_and_write_once(rows, columns):
    assert roofline.softmax(rows, columns, 2) == Work(4 * rows * columns, 5 * rows * columns)
    normalised = roofline.layernorm(rows, columns, 4)
    assert normalised == Work(8 * rows * columns + 8 * columns, 7 * rows * columns)
    assert normalised.intensity < 7 / 8


@given(sizes, st.integers(1, 4), st.integers(1, 64), st.integers(1, 64), st.sampled_from([8, 64, 128]))
def test_naive_attention_is_its_three_kernels(batch, heads, queries, keys, head_dim):
    """Two batched matmuls and a softmax that also scales, each through memory."""
    each = roofline.matmul(queries, head_dim, keys) + roofline.matmul(queries, keys, head_dim)
    kernels = batch * heads * (each + roofline.softmax(queries, keys) + Work(0, queries * keys))
    assert roofline.attention(batch, heads, queries, keys, head_dim) == kernels


@given(st.integers(1, 4), st.integers(1, 64), st.integers(1, 64), st.booleans())
def test_fused_attention_moves_no_scores(heads, queries, more_keys, causal):
    keys = queries + more_keys
    fused = roofline.attention(2, heads, queries, keys, 16, 2, causal=causal, fused=True)
    naive = roofline.attention(2, heads, queries, keys, 16, 2, causal=causal)
    assert naive.bytes - fused.bytes == 4 * 2 * heads * queries * keys * 2
    assert fused.bytes == 2 * 2 * heads * (2 * queries + 2 * keys) * 16
    visible = np.tril(np.ones((queries, keys)), keys - queries).sum() if causal else queries * keys
    assert fused.flops == (4 * 16 + 6) * 2 * heads * visible
    assert naive.flops == (4 * 16 + 6) * 2 * heads * queries * keys


def test_shared_keys_and_values_are_read_once():
    grouped = roofline.attention(1, 8, 1, 1000, 64, kv_heads=2, fused=True)
    assert grouped.bytes == 2 * (2 * 8 * 64 + 2 * 2 * 1000 * 64)
    assert grouped.flops == roofline.attention(1, 8, 1, 1000, 64, fused=True).flops


def test_elementwise():
    assert saxpy(1000) == Work(12_000, 2000)
    assert saxpy(7).intensity == pytest.approx(1 / 6)
    assert roofline.elementwise(10, 2, inputs=2) == Work(60, 10)


def test_a_wrong_size_is_named():
    for call, name in (
        (lambda: roofline.matmul(0, 1, 1), "m = 0"),
        (lambda: roofline.matmul(1, 1, 1, -2), "bytes_per_element = -2"),
        (lambda: roofline.softmax(3, -1), "columns = -1"),
        (lambda: roofline.layernorm(-3, 1), "rows = -3"),
        (lambda: roofline.attention(1, 8, 1, 1, 1, kv_heads=3), "kv_heads = 3"),
        (lambda: roofline.attention(1, 8, 2, 1, 1, causal=True), "queries = 2, keys = 1"),
        (lambda: roofline.elementwise(0), "elements = 0"),
    ):
        with pytest.raises(ValueError, match=name):
            call()


def test_classify_by_roofs():
    """The toy: 1000 FLOP/s, 100 bytes/s, ridge 10 FLOP/byte."""
    assert classify(Work(1, 11), TOY, "fp32") == "compute"
    assert classify(Work(1, 10), TOY, "fp32") == "compute"
    assert classify(Work(1, 9), TOY, "fp32") == "memory"
    assert classify(Work(1, 0), TOY, "fp32") == "memory"
    assert classify(roofline.matmul(8192, 8192, 8192), accelerator("H100"), "bf16") == "compute"
    assert classify(roofline.matmul(1, 8192, 8192), accelerator("H100"), "bf16") == "memory"
    assert classify(roofline.layernorm(8192, 4096), accelerator("H100"), "fp32") == "memory"


def test_classify_against_the_launch():
    """100 bytes take the toy one second."""
    work = Work(100, 10)
    assert classify(work, TOY, "fp32", launch_seconds=1.0) == "memory"
    assert classify(work, TOY, "fp32", launch_seconds=1.01) == "overhead"
    assert classify(work, TOY, "fp32", measured_seconds=3.0, launch_seconds=2.0) == "memory"
    assert classify(work, TOY, "fp32", measured_seconds=3.0, launch_seconds=4.0) == "overhead"
    assert classify(work, TOY, "fp32", measured_seconds=0.5, launch_seconds=0.7) == "overhead"
    for name in ("measured_seconds", "launch_seconds"):
        for wrong in (-1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match=name):
                classify(work, TOY, "fp32", **{name: wrong})


def test_a_roofline_of_a_device():
    toy = Roofline(TOY, "fp32")
    assert (toy.ridge_point, toy.peak_flops, toy.bandwidth) == (10.0, 1000.0, 100.0)
    assert toy.attainable(Work(2, 2)) == toy.attainable(1.0) == 100.0
    assert toy.time_floor(Work(200, 1)) == 2.0


POINTS = {
    "matmul": roofline.matmul(4096, 4096, 4096),
    "matmul, measured": (roofline.matmul(4096, 4096, 4096), 3e-4),
    "layernorm": roofline.layernorm(8192, 4096),
    "softmax": roofline.softmax(8192, 4096),
    "matrix · vector": roofline.matmul(1, 4096, 4096),
    "attention": roofline.attention(8, 32, 2048, 2048, 128),
    "saxpy": saxpy(1 << 26),
    "add": roofline.elementwise(1 << 26, inputs=2),
}


def test_the_plot_labels_every_point_without_overlap_and_inside_the_frame():
    ax = Roofline(accelerator("H100"), "bf16").plot(points=POINTS)
    ax.figure.canvas.draw()
    labels = {text.get_text(): text.get_window_extent() for text in ax.texts if text.get_text()}
    assert set(POINTS) < set(labels) and "ridge 295 FLOP/byte" in labels
    boxes = list(labels.values())
    assert not [1 for i, one in enumerate(boxes) for other in boxes[:i] if one.overlaps(other)]
    frame = ax.get_window_extent()
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1 for box in boxes)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_the_plot_puts_points_where_they_belong():
    h100 = Roofline(accelerator("H100"), "bf16")
    ax = h100.plot(points=POINTS)
    drawn = [(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines if len(line.get_xdata()) == 1]
    work, seconds = POINTS["matmul, measured"]
    assert (work.intensity, work.flops / seconds) in drawn
    assert (POINTS["softmax"].intensity, h100.attainable(POINTS["softmax"])) in drawn
    assert all(y <= h100.attainable(x) for x, y in drawn) and len(drawn) == len(POINTS)
    roofs = ax.lines[0].get_xydata()
    assert roofs[1].tolist() == [h100.ridge_point, h100.peak_flops] and roofs[0][1] == roofs[0][0] * h100.bandwidth


def test_the_plot_draws_into_given_axes_and_refuses_what_has_no_place():
    from matplotlib.figure import Figure

    axes = Figure().subplots(1, 2)
    assert Roofline(TOY, "fp32").plot(axes[1]) is axes[1] and not axes[0].lines
    with pytest.raises(ValueError, match="copy.*no place"):
        Roofline(TOY, "fp32").plot(points={"copy": Work(1, 0)})
    with pytest.raises(ValueError, match="late: measured seconds = 0"):
        Roofline(TOY, "fp32").plot(points={"late": (Work(1, 1), 0.0)})
