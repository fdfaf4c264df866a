"""Attention's backward pass and a product under sustained load are timed as described, in small and without a GPU."""

import pytest
import torch
from threeloops_grader.machine.provenance import provenance
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import attention_backward, sustained
from benchmarks.attention_backward import FLASH, Shape
from benchmarks.result import Unmeasured
from benchmarks.sustained import Window, rates


@pytest.fixture(scope="module")
def about():
    from threeloops.hardware.capability import probe

    return provenance(probe(), "cpu")


def test_attention_counts_the_two_products_forward_and_the_five_backward():
    full, causal = (Shape(2, 4, 4, 8, 16, causal) for causal in (False, True))
    assert full.forward_flops == 2 * (2 * 2 * 4 * 8 * 8 * 16)
    assert full.backward_flops == 5 * (2 * 2 * 4 * 8 * 8 * 16)
    assert causal.forward_flops == full.forward_flops * 36 / 64  # 8·9/2 of 64 pairs


def test_attention_times_both_passes_and_refuses_wrong_gradients():
    shape = Shape(1, 2, 2, 16, 8, causal=True)
    inputs = attention_backward.draw(shape, "cpu")
    flash = attention_backward.parties(shape)[FLASH]
    expected = attention_backward.gradients(flash, inputs)
    assert [gradient.shape for gradient in expected] == [value.shape for value in inputs[:3]]
    attention_backward.require_alike(expected, expected)
    full = attention_backward.gradients(scaled_dot_product_attention, inputs)
    with pytest.raises(ValueError, match="dq differs from FlashAttention-2 in torch by"):
        attention_backward.require_alike(full, expected)
    forward, backward = attention_backward.times(flash, inputs, 3)
    assert len(forward) == len(backward) == 3 and min(forward + backward) > 0
    row = attention_backward.rate(shape, FLASH, ((1.0, 2.0, 9.0), (5.0, 5.0, 5.0)))
    assert row["backward_over_forward"] == 2.5
    assert row["backward_flops_per_second"] == shape.backward_flops / 5


def test_grouped_heads_share_their_keys():
    shape = Shape(1, 4, 2, 8, 8, causal=False)
    assert [tuple(value.shape) for value in attention_backward.draw(shape, "cpu")] == [
        (1, 4, 8, 8), (1, 2, 8, 8), (1, 2, 8, 8), (1, 4, 8, 8)
    ]  # fmt: skip
    assert str(shape) == "1 × 4/2 heads × 8 tokens × 8, full"


def test_attention_is_not_measured_without_a_gpu(about):
    with pytest.raises(Unmeasured, match="no GPU"):
        attention_backward.measure(about)


def test_a_sustained_run_has_windows_in_a_row_for_as_long_as_asked():
    left = torch.randn(64, 64)
    windows = sustained.sustained(lambda: left @ left, 2 * 64**3, "cpu", 0.6)
    ends = [0.0, *(window.end for window in windows)]
    assert ends == sorted(ends) and ends[-2] < 0.6 <= ends[-1]
    for before, window in zip(ends, windows, strict=False):
        assert window.rate == pytest.approx(window.products * 2 * 64**3 / (window.end - before), rel=0.01)
        assert window.clock is window.power is window.temperature is None


def test_a_rate_is_taken_from_the_windows_that_ended_in_its_time():
    windows = [Window(end, 1, 10 * end, None, None, None) for end in (0.5, 1.0, 1.5)]
    assert rates(windows, 0, 1) == (5.0, 10.0)
    assert rates(windows, 1, 2) == (15.0,)
    assert rates(windows, 2, 3) == (5.0,)


def test_notes_say_what_is_left_of_the_burst_and_at_which_clock(about, monkeypatch):
    monkeypatch.setattr(sustained, "QUICK_SECONDS", 0.3)
    monkeypatch.setattr(sustained, "PAUSE_SECONDS", 0.0)
    result = sustained.measure(about, quick=True)
    assert [series.peer for series in result.series] == [True, False, False]
    left = 100 * result.series[2].median / result.series[0].median
    assert result.notes == [f"512³ matrix product, bf16: {left:.1f}% of the burst rate is left in the last ten seconds"]
    windows = {"x": [{"end": 1.0, "clock": 1.4e9, "power": 700.0, "temperature": 60.0}]}
    series = [
        sustained.Series("x", by, "FLOP/s", (rate,))
        for by, rate in (("bursts after a pause", 4.0), (sustained.END, 3.0))
    ]
    assert sustained.notes(series, windows) == [
        "x: 75.0% of the burst rate is left in the last ten seconds, at 1400 MHz, 700 W and 60 °C"
    ]
