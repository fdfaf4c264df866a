"""Layers of experts and latent attention: loads of a routing, bounds of the data sheet, errors on shapes left out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner.predict.silicon import LatentDecode, fitted, latent_decode_seconds, sheet
from threeloops.inner.predict.silicon.experts import (
    Exchange,
    Experts,
    Loads,
    QuantizedExperts,
    exchange_seconds,
    experts_seconds,
    loads,
)
from threeloops.inner.predict.silicon.experts.exchange import _missed
from threeloops.inner.predict.silicon.experts.routing import ROWS

from benchmarks.silicon import fit
from benchmarks.silicon_cases import cases
from benchmarks.silicon_report import judged

H100 = sheet("H100 SXM")
DEMANDED = 0.15
"""The mean error on the half of the shapes that no fit has seen."""


def of_kind(*kinds):
    return [case for case in cases() if issubclass(case.kind, kinds)]


def held_out(case):
    return judged(case, fitted(case.kind, case.device, case.variant))["held out"]


@pytest.mark.parametrize("case", of_kind(LatentDecode, Experts), ids=lambda case: case.name)
def test_the_half_that_no_fit_has_seen_is_predicted(case):
    errors = held_out(case)
    assert errors["n"] > 100
    assert errors["mean"] <= DEMANDED


@pytest.mark.parametrize("device", ["H100 SXM", "H200 SXM", "B200"])
def test_an_exchange_is_predicted_on_average_over_libraries_and_phases(device):
    """DeepEP only: runs of its second version differ by a factor of two and more at the same shape."""
    of_device = [case for case in of_kind(Exchange) if case.device == device and "v2" not in case.variant]
    assert len(of_device) == 4
    assert np.mean([held_out(case)["mean"] for case in of_device]) <= DEMANDED


@pytest.mark.parametrize(
    "name",
    [
        "latent attention while decoding bf16, H100 SXM",
        "layer of experts fp8, B200",
        "exchange of tokens by DeepEP dispatch, H200 SXM",
    ],
)
def test_a_new_fit_gives_the_constants_of_the_library(name):
    pytest.importorskip("scipy")
    (case,) = (case for case in cases() if case.name == name)
    ours = judged(case, fitted(case.kind, case.device, case.variant))["in the fit"]["mean"]
    assert judged(case, fit(case))["in the fit"]["mean"] == pytest.approx(ours, abs=0.003)


def busiest(tokens, top_k, experts, ranks, skew=0.0) -> Loads:
    return loads(*(np.array([size]) for size in (tokens, top_k, experts, ranks, skew)))


def test_an_even_routing_gives_every_expert_the_same():
    even = busiest(1024, 8, 128, 4)
    assert (even.active[0], even.tokens[0]) == (32, 1024 * 8 / 4)
    assert even.blocks[:, 0].tolist() == [32 * -(-64 // rows) for rows in ROWS]


def test_few_tokens_reach_few_experts():
    """4 tokens with 8 experts each reach 32 of 128 experts, 8 on each of 4 ranks."""
    assert busiest(4, 8, 128, 4).active[0] == 8
    assert busiest(1, 2, 8, 8).active[0] == 1


@given(
    st.integers(1, 5000),
    st.sampled_from([(2, 8), (8, 128), (6, 64)]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1.01, 1.2]),
)
def test_a_skewed_routing_loses_no_token_and_loads_one_rank_more(tokens, sizes, ranks, skew):
    top_k, experts = sizes
    skewed = busiest(tokens, top_k, experts, ranks, skew)
    choices = tokens * top_k
    assert skewed.tokens[0] >= choices / ranks - 1e-9
    assert skewed.tokens[0] <= min(choices, tokens * experts / ranks)
    if ranks == 1:
        assert skewed.tokens[0] == pytest.approx(choices)
    assert skewed.active[0] <= experts / ranks
    assert np.all(np.diff(skewed.blocks[:, 0]) <= 0) and skewed.blocks[-1, 0] >= skewed.active[0]


def test_a_skewed_routing_takes_longer():
    constants = fitted(Experts, "H100 SXM", "bf16")
    even, skewed = (
        float(experts_seconds(H100, 16384, 4096, 1536, busiest(16384, 8, 128, 8, skew), constants)[0])
        for skew in (0.0, 1.2)
    )
    assert skewed > 1.4 * even


@given(st.integers(1, 1 << 15), st.sampled_from([(4096, 14336, 2, 8), (2048, 768, 8, 128)]), st.sampled_from([1, 8]))
def test_no_layer_of_experts_is_faster_than_the_data_sheet(tokens, layer, ranks):
    width, hidden, top_k, experts = layer
    rows = busiest(tokens, top_k, experts, ranks)
    for constants, dtype, element in (
        (fitted(Experts, "H100 SXM", "bf16"), "bf16", 2),
        (fitted(QuantizedExperts, "H100 SXM", "fp8"), "fp8", 1),
    ):
        seconds = float(experts_seconds(H100, tokens, width, hidden, rows, constants, warm=False)[0])
        assert seconds >= 6 * rows.tokens[0] * width * hidden / H100.rate(dtype)
        assert seconds >= 3 * element * rows.active[0] * width * hidden / H100.bandwidth


@given(st.integers(1, 1024), st.integers(1, 1 << 17), st.sampled_from([16, 64, 128]))
def test_no_latent_attention_is_faster_than_the_data_sheet(batch, keys, heads):
    seconds = float(latent_decode_seconds(H100, batch, keys, heads, fitted(LatentDecode, "H100 SXM", "bf16")))
    assert seconds >= 2 * batch * keys * 576 / H100.bandwidth
    assert seconds >= 2 * batch * keys * heads * (576 + 512) / H100.rate("bf16")


@given(st.integers(1, 1 << 16), st.sampled_from(["dispatch", "combine"]), st.booleans())
def test_no_exchange_is_faster_than_its_links(tokens, phase, low_latency):
    name = f"DeepEP{' for low latency' if low_latency else ''} {phase}"
    constants = fitted(Exchange, "H100 SXM", name)
    seconds = float(exchange_seconds(H100, phase, tokens, 7168, 8, 256, 8, constants, low_latency=low_latency))
    assert seconds >= tokens * 7 * (1 - _missed(np.array(8), np.array(256.0), np.array(32.0))) * 7168 / H100.link


def test_a_token_misses_a_rank_as_drawing_without_replacement_says():
    """2 of 4 experts are drawn, and a rank holds 2 of them: both are on the other rank in 1 of 6 cases."""
    assert float(_missed(np.array(2), np.array(4.0), np.array(2.0))) == pytest.approx(1 / 6)


def test_refusals():
    with pytest.raises(ValueError, match="ranks = 3: expected a divisor of experts = 8"):
        busiest(16, 2, 8, 3)
    with pytest.raises(ValueError, match="top_k = 9: expected 1 to experts = 8"):
        busiest(16, 9, 8, 1)
    with pytest.raises(ValueError, match="phase = 'gather': expected dispatch or combine"):
        exchange_seconds(H100, "gather", 1, 4096, 2, 8, 8, Exchange())
    with pytest.raises(ValueError, match="L40S has no link between GPUs"):
        exchange_seconds(sheet("L40S"), "combine", 1, 4096, 2, 8, 8, Exchange())
