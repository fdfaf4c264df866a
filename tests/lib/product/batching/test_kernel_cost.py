"""The cost of a step from its kernels: it keeps to the data sheet, and meets published times per output token."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.hardware import accelerator
from threeloops.inner.predict.silicon import StepHost, fitted
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import KernelCost, RooflineCost, StepShape

from benchmarks.silicon import fit_host, judged_serving

LLAMA_8B = GPTConfig(
    128256, layers=32, heads=32, kv_heads=8, width=4096, mlp_width=14336, max_sequence=8192, tied_embeddings=False
)
COST = KernelCost(LLAMA_8B)


def decoding(count, position):
    return StepShape(((position, 1, True),) * count)


def test_published_times_per_output_token_are_met():
    """Half of the points judges; the other half fitted four constants of each engine. No fit has seen a B200."""
    table = judged_serving(lambda engine: fitted(StepHost, "Hopper", engine))
    assert table["held out"]["n"] > 250
    assert table["held out"]["median"] <= 0.09
    assert table["held out"]["p90"] <= 0.22
    assert table["B200, in no fit"]["n"] > 100
    assert table["B200, in no fit"]["median"] <= 0.15


def test_without_the_host_the_times_are_not_met():
    assert judged_serving(lambda _: StepHost(1e-6, 1e-8, 1e-8, 1.0))["held out"]["median"] > 0.09


def test_a_new_fit_gives_the_constants_of_the_library():
    pytest.importorskip("scipy")
    own, new = fitted(StepHost, "Hopper", "trtllm"), fit_host("trtllm")
    assert (new.step, new.sequence, new.launch) == pytest.approx((own.step, own.sequence, own.launch), rel=0.05)


@given(st.integers(1, 256), st.integers(0, 8000))
def test_no_step_is_faster_than_the_data_sheet(count, position):
    floor = RooflineCost(LLAMA_8B, accelerator("H100 SXM"))
    assert COST(decoding(count, position)) > floor(decoding(count, position))


def test_more_sequences_and_longer_ones_cost_more():
    times = [COST(decoding(count, position)) for count, position in ((1, 100), (64, 100), (64, 4000))]
    assert times == sorted(times)


def test_a_step_is_what_even_steps_add_up_to():
    """One step of a scheduler, and the arrays of equal steps that the benchmark judges, are the same formula."""
    seconds, kernels = COST.even(np.array([64.0]), np.array([1001.0]), np.array([0.0]))
    host = COST.host
    expected = seconds[0] + host.launch * kernels[0] + host.step + 64 * host.sequence
    assert COST(decoding(64, 1000)) == pytest.approx(expected, rel=1e-12)
    seconds, kernels = COST.even(np.array([8.0]), np.array([1001.0]), np.array([512.0]))
    mixed = StepShape((*decoding(8, 1000).chunks, (0, 512, True)))
    expected = seconds[0] + host.launch * kernels[0] + host.step + 8 * host.sequence
    assert COST(mixed) == pytest.approx(expected, rel=1e-12)


def test_later_chunks_of_a_prompt_cost_more():
    first, last = (COST(StepShape(((start, 512, False),))) for start in (0, 7168))
    assert first < last < first + COST(StepShape(((0, 7680, False),)))


def test_more_gpus_make_a_step_shorter_and_pay_for_their_all_reduces():
    one, two, eight = (replace(COST, ranks=ranks)(decoding(32, 2000)) for ranks in (1, 2, 8))
    assert one > two > eight > one / 8


def test_what_is_not_known_is_refused_by_name():
    with pytest.raises(LookupError, match="Gemm: 'MI300X' was not measured"):
        KernelCost(LLAMA_8B, "MI300X")
    with pytest.raises(LookupError, match="StepHost on Hopper: 'llama.cpp' was not measured; there are .*vllm"):
        KernelCost(LLAMA_8B, engine="llama.cpp")
    with pytest.raises(ValueError, match="ranks = 3: expected a divisor of heads = 32"):
        KernelCost(LLAMA_8B, ranks=3)
    with pytest.raises(ValueError, match="sliding_window = 4096: this cost counts every key"):
        KernelCost(replace(LLAMA_8B, sliding_window=4096))
