"""Predicted kernels: the formulas keep to the data sheet, and the constants are what a fit gives."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner.predict.silicon import (
    CustomAllReduce,
    Decode,
    Gemm,
    Prefill,
    QuantizingGemm,
    Ring,
    SwitchedRing,
    collective_seconds,
    custom_all_reduce_seconds,
    decode_constants,
    decode_seconds,
    fitted,
    gemm_seconds,
    prefill_seconds,
    sheet,
    unidentified,
)

from benchmarks.silicon import fit
from benchmarks.silicon_cases import cases
from benchmarks.silicon_report import judged

H100 = sheet("H100 SXM")
CASES = {case.name: case for case in cases()}
DEMANDED = {  # the mean error on held-out shapes, and the 90th percentile if one is demanded
    "product bf16, H100 SXM": (0.08, 0.20),
    "product bf16, H200 SXM": (0.08, 0.20),
    "product bf16, A100 SXM 80GB": (0.08, None),
    "product bf16, B200": (0.10, None),
    "product bf16, L40S": (0.13, None),
    "attention of prompts bf16, H100 SXM": (0.09, None),
    "attention while decoding bf16, H100 SXM": (0.07, None),
}


@pytest.mark.parametrize("name", DEMANDED)
def test_shapes_that_no_fit_has_seen_are_predicted(name):
    mean, p90 = DEMANDED[name]
    case = CASES[name]
    held_out = judged(case, fitted(case.kind, case.device, case.variant))["held out"]
    assert held_out["n"] > 100
    assert held_out["mean"] <= mean
    assert p90 is None or held_out["p90"] <= p90


@pytest.mark.parametrize("device", ["A100 SXM 80GB", "H100 SXM", "H200 SXM", "B200"])
def test_collectives_are_predicted_within_a_tenth_on_average(device):
    of_device = [case for case in CASES.values() if issubclass(case.kind, Ring) and case.device == device]
    assert len(of_device) == 4
    means = [judged(case, fitted(case.kind, device, case.variant))["held out"]["mean"] for case in of_device]
    assert np.mean(means) <= 0.10


@pytest.mark.parametrize(
    "name", ["product bf16, H100 SXM", "attention of prompts bf16, A100 SXM 80GB", "NCCL all_reduce, H100 SXM"]
)
def test_a_new_fit_gives_the_constants_of_the_library(name):
    pytest.importorskip("scipy")
    case = CASES[name]
    ours = judged(case, fitted(case.kind, case.device, case.variant))["in the fit"]["mean"]
    assert judged(case, fit(case))["in the fit"]["mean"] == pytest.approx(ours, abs=0.002)


def test_a_fit_on_wrong_times_does_not_pass_for_one():
    """The demanded errors can fail: with other constants, or with times of another device."""
    case = CASES["product bf16, H100 SXM"]
    constants = fitted(Gemm, "H100 SXM", "bf16")
    assert judged(case, replace(constants, stream=0.5))["held out"]["mean"] > 0.08
    assert judged(case, fitted(Gemm, "A100 SXM 80GB", "bf16"))["held out"]["mean"] > 0.08


SIZES = st.integers(1, 1 << 16)


@given(SIZES, SIZES, SIZES, st.sampled_from(["H100 SXM", "A100 SXM 80GB", "B200"]))
def test_no_product_is_faster_than_the_data_sheet(m, n, k, device):
    on = sheet(device)
    seconds = float(gemm_seconds(on, m, n, k, fitted(Gemm, device, "bf16"), warm=False))
    assert seconds >= 2 * m * n * k / on.rate("bf16")
    assert seconds >= 2 * n * k / on.bandwidth  # the weights are read at least


@given(
    st.integers(1, 64),
    st.integers(1, 1 << 16),
    st.sampled_from([(8, 1), (32, 8), (64, 64)]),
    st.sampled_from([64, 128]),
)
def test_no_attention_is_faster_than_the_data_sheet(batch, tokens, heads, head_dim):
    query_heads, kv_heads = heads
    prefill = prefill_seconds(H100, batch, tokens, query_heads, kv_heads, head_dim, fitted(Prefill, "H100 SXM", "bf16"))
    pairs = batch * query_heads * tokens * (tokens + 1) / 2
    assert float(prefill) >= 4 * head_dim * pairs / H100.rate("bf16")
    decode = decode_seconds(H100, batch, tokens, kv_heads, head_dim, fitted(Decode, "H100 SXM", "bf16"), warm=False)
    assert float(decode) >= batch * tokens * kv_heads * 2 * head_dim * 2 / H100.bandwidth


@given(st.integers(2, 8), st.integers(1, 1 << 30))
def test_no_collective_is_faster_than_its_links(ranks, size):
    ring = fitted(Ring, "H100 SXM", "all_gather")
    assert float(collective_seconds(H100, "all_gather", ranks, size, ring)) >= (ranks - 1) / ranks * size / H100.link
    custom = fitted(CustomAllReduce, "H100 SXM", "vllm")
    assert float(custom_all_reduce_seconds(H100, ranks, size, custom)) >= 2 * (ranks - 1) / ranks * size / H100.link


def test_flash_attention_2_does_not_split_the_keys_of_heads_that_are_not_grouped():
    """One sequence with 8 heads: 8 of an A100's multiprocessors read all of it. A Hopper's kernel splits it."""
    for device, times in (("A100 SXM 80GB", 4), ("H100 SXM", 1)):
        constants = decode_constants(device)
        grouped, alone = (
            float(decode_seconds(sheet(device), 1, 1 << 15, 8, 128, constants, heads=heads)) for heads in (64, 8)
        )
        assert alone > times * grouped if times > 1 else alone == grouped


def test_in_a_model_a_small_cache_comes_from_memory():
    """20 MB of keys and values fit the L2. A benchmark that repeats one call finds them there, a model does not."""
    constants = fitted(Decode, "H100 SXM", "bf16")
    warm, cold = (decode_seconds(H100, 8, 640, 8, 128, constants, warm=warm) for warm in (True, False))
    assert float(cold) > 1.2 * float(warm)


def test_a_switch_that_adds_halves_a_large_all_reduce():
    constants = fitted(SwitchedRing, "H100 SXM", "all_reduce")
    without = Ring(constants.start, constants.hop, constants.pipe, constants.reach)
    ring, switch = (float(collective_seconds(H100, "all_reduce", 8, 1 << 30, kind)) for kind in (without, constants))
    assert 0.55 < switch / ring < 0.8


def test_fp8_has_twice_the_rate_and_a_kernel_before_it():
    bf16 = fitted(Gemm, "H100 SXM", "bf16")
    fp8 = fitted(QuantizingGemm, "H100 SXM", "fp8")
    assert gemm_seconds(H100, 16, 1024, 1024, fp8) > gemm_seconds(H100, 16, 1024, 1024, bf16)
    large = gemm_seconds(H100, 16384, 16384, 16384, fp8) / gemm_seconds(H100, 16384, 16384, 16384, bf16)
    assert 0.45 < float(large) < 0.8


def test_constants_on_their_bounds_are_named():
    assert unidentified(Ring(reach=1.0, start=1e-6)) == ["start", "reach"]
    assert unidentified(Ring()) == []


def test_what_was_not_measured_is_refused_by_name():
    with pytest.raises(LookupError, match="Gemm: 'MI300X' was not measured; there are A100 SXM 80GB, .*H100 SXM"):
        fitted(Gemm, "MI300X", "bf16")
    with pytest.raises(LookupError, match="Gemm on H100 SXM: 'int4' was not measured; there are bf16"):
        fitted(Gemm, "H100 SXM", "int4")
    with pytest.raises(ValueError, match="operation = 'gather': expected one of all_gather"):
        collective_seconds(H100, "gather", 8, 1024, Ring())
    with pytest.raises(ValueError, match="L40S has no link between GPUs"):
        collective_seconds(sheet("L40S"), "all_reduce", 8, 1024, Ring())
    with pytest.raises(ValueError, match="multiprocessors = "):
        sheet("TPU v5e")
