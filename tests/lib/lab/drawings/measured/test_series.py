"""Measured attention, experts and deployments, from the packed tables read anew, and what labs say of them."""

import csv
import gzip
import io
import math
from importlib.resources import files

import pytest
from threeloops.hardware import accelerator
from threeloops.lab.drawings.measured import attention, experts, serving
from threeloops.lab.drawings.measured.series import Series, draw_floors
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import RooflineCost

NODE = {"device": "h100_sxm"}


def packed(table, across, time, **wanted):
    """Seconds by a column, from the rows that have all `wanted` values, as text."""
    data = (files("threeloops.hardware.measured") / "tables" / f"{table}.csv.gz").read_bytes()
    lines = csv.DictReader(io.StringIO(gzip.decompress(data).decode()))
    unit = {"us": 1e-6, "silicon_tpot_ms": 1e-3}[time]
    chosen = [line for line in lines if all(line[key] == value for key, value in wanted.items())]
    return {int(float(line[across])): unit * float(line[time]) for line in chosen}


def same(series, expected):
    assert list(series.sizes) == sorted(expected)
    assert dict(zip(series.sizes, series.seconds, strict=True)) == pytest.approx(expected, rel=1e-12)
    assert series.source.endswith("not by us")


def test_attention_is_that_of_the_tables():
    heads = {"num_heads": "32", "num_key_value_heads": "8", "head_dim": "128"}
    fa3 = attention.prefill("H100 SXM")
    same(fa3, packed("attention_prefill", "isl", "us", batch_size="1", **NODE, **heads))
    assert fa3.source.startswith("H100 SXM, vLLM 0.24.0 (vllm_flash_attn_fa3), measured by NVIDIA")
    by_step = packed("attention_decode", "step", "us", batch_size="64", **NODE, **heads)
    same(attention.decode("H100 SXM", 64), {step + 1: seconds for step, seconds in by_step.items()})
    by_step = packed("mla_decode", "step", "us", batch_size="64", num_heads="128", **NODE)
    latent = attention.latent_decode("H100 SXM", 64)
    same(latent, {step + 1: seconds for step, seconds in by_step.items()})
    assert latent.source.startswith("H100 SXM, TensorRT-LLM 1.3.0rc20, measured by NVIDIA")


@pytest.mark.parametrize("routing", ["balanced", "power_law_1.01", "power_law_1.2"])
def test_experts_are_those_of_the_table(routing):
    layer = {"hidden_size": "2048", "inter_size": "768", "topk": "8", "num_experts": "128", "moe_ep_size": "8"}
    wanted = {"moe_dtype": "bfloat16", "distribution": routing, **layer, **NODE}
    same(experts.experts("H100 SXM", routing), packed("moe", "num_tokens", "us", **wanted))


@pytest.mark.parametrize("backend", ["deepep_ht", "deepep_ll"])
@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_exchanges_are_those_of_the_table(backend, phase):
    layer = {"hidden_size": "7168", "topk": "8", "num_experts": "256", "ep_size": "8"}
    wanted = {"comm_backend": backend, "phase": phase, **layer, **NODE}
    same(experts.exchange("H100 SXM", backend, phase), packed("moe_all_to_all", "num_tokens", "us", **wanted))


def test_times_per_token_are_those_of_the_table():
    wanted = {"backend": "trtllm", "system": "h100_sxm", "gemm_quant_mode": "", "tp_size": "1"}
    wanted |= {"model_path": "meta-llama/Llama-3.1-8B-Instruct", "isl": "1024", "osl": "512"}
    real = serving.per_token("H100 SXM", 1024, 512)
    same(real, packed("serving", "batch_size", "silicon_tpot_ms", **wanted))
    assert real.source.startswith("H100 SXM, TensorRT-LLM 1.0.0rc3, measured by NVIDIA")


def test_lab_04_says_68_percent_and_more_bytes_than_memory_delivers():
    """In blocks of 128 × 128, block i of 128 visits i + 1 tiles, in each of 32 heads."""
    tiles = 32 * 128 * 129 // 2
    fa3 = attention.prefill("H100 SXM").at(16384)
    assert 4 * 128**3 * tiles / 989.4e12 / fa3 == pytest.approx(0.68, abs=0.005)
    assert 2 * tiles * 128 * 128 * 2 / 3.35e12 > 1.5 * fa3


def test_lab_04_says_that_grouped_heads_share_a_load():
    """If each of 32 heads loaded its keys and values, the bytes would take 3.7 times as long as the kernel."""
    assert 64 * 32 * 2 * 8192 * 128 * 2 / 3.35e12 / attention.decode("H100 SXM", 64).at(8192) == pytest.approx(
        3.7, abs=0.05
    )


def test_lab_11_says_that_skew_hurts_many_tokens_and_helps_few():
    even, skewed = (experts.experts("H100 SXM", kind) for kind in ("balanced", "power_law_1.2"))
    assert skewed.at(16384) / even.at(16384) == pytest.approx(1.89, abs=0.005)
    assert skewed.at(16) / even.at(16) == pytest.approx(0.73, abs=0.005)
    ranks = sum(1 - math.prod((224 - i) / (256 - i) for i in range(8)) for _ in range(7))
    sent = experts.exchange("H100 SXM", "deepep_ht", "dispatch").at(16384)
    assert sent / (16384 * ranks * 7168 * 2 / 450e9) == pytest.approx(1.7, abs=0.05)


def test_lab_16_says_one_factor_for_all_batches():
    """A decode step waits for 16.06 GB and the keys; a prompt of 1,024 tokens makes the step that it joins longer."""
    real = serving.per_token("H100 SXM", 1024, 512)
    factors = []
    for requests, seconds in zip(real.sizes, real.seconds, strict=True):
        decode = (16.06e9 + requests * 1281 * 131072) / 3.35e12
        pairs = (requests - 1) * 1280 + 1024 * 1025 / 2
        mixed = (2 * 8.03e9 * (requests - 1 + 1024) + 4 * 32 * 4096 * pairs) / 989.4e12
        factors.append(seconds / (decode + (requests - 1) / 512 * (mixed - decode)))
    assert (min(factors), max(factors)) == pytest.approx((1.38, 1.46), abs=0.01)
    assert 1e3 * real.at(64) == pytest.approx(13.1, abs=0.05)


@pytest.mark.parametrize(
    ("seconds", "unit"), [((2e-3, 9e-3), "ms"), ((6e-4, 9e-3), "ms"), ((4e-4, 9e-3), "µs"), ((2e-6, 9e-3), "µs")]
)
def test_the_picture_has_every_point_and_suits_its_unit(seconds, unit):
    times = {"measured": Series((1, 4), seconds, "")}
    axes = draw_floors(times, {"floor": {1: seconds[0], 4: seconds[1]}}, "title", ticks=(1, 4)).axes[0]
    line, dots = axes.get_lines()
    scale = {"ms": 1e3, "µs": 1e6}[unit]
    for curve in (line, dots):
        assert list(curve.get_xdata()) == [1, 4]
        assert list(curve.get_ydata()) == pytest.approx([scale * second for second in seconds])
    assert axes.get_ylabel() == unit
    assert [text.get_text() for text in axes.texts] == ["floor", "measured"]


def test_names_of_curves_that_end_together_stand_a_line_apart():
    times = {name: Series((1, 2), (1e-3, end), "") for name, end in (("a", 1.9e-3), ("b", 2e-3), ("c", 2.1e-3))}
    fig = draw_floors(times, {}, "title", ticks=(1, 2))
    fig.draw_without_rendering()
    heights = [text.get_window_extent().y0 * 72 / fig.dpi for text in fig.axes[0].texts]
    assert all(above - below > 12 for below, above in zip(heights, heights[1:], strict=False))


def test_a_name_can_stand_above_the_first_point():
    times = {name: Series((1, 2), (1e-3, 2e-3), "") for name in ("a", "b")}
    fig = draw_floors(times, {}, "title", ticks=(1, 2), named_at_start=("b",))
    places = {text.get_text(): tuple(text.xy) for text in fig.axes[0].texts}
    assert places == {"a": (2, 2.0), "b": (1, 1.0)}


def test_a_time_that_was_not_measured_is_refused():
    with pytest.raises(ValueError, match="not in tuple"):
        Series((1, 2), (1.0, 2.0), "").at(3)


@pytest.mark.parametrize(("least", "tokens"), [(1, (1, 4, 9)), (4, (4, 9)), (5, (9,)), (10, ())])
def test_a_series_can_begin_later(least, tokens):
    series = Series((1, 4, 9), (0.1, 0.4, 0.9), "here").since(least)
    assert series == Series(tokens, tuple(count / 10 for count in tokens), "here")


def test_lab_15_says_what_decode_attention_takes():
    """93% of the bandwidth for 64 sequences, 19.8 µs for one, and 2.76 times faster with a latent cache."""
    one, many = (attention.decode("H100 SXM", batch) for batch in (1, 64))
    assert 64 * 8192 * 8 * 128 * 2 * 2 / 3.35e12 / many.at(8192) == pytest.approx(0.93, abs=0.005)
    assert 1e6 * many.at(8192) == pytest.approx(688, abs=0.5)
    assert [1e6 * one.at(tokens) for tokens in (64, 8192)] == pytest.approx([12, 19.8], abs=0.3)
    latent = attention.latent_decode("H100 SXM", 64)
    assert many.at(8192) / latent.at(8192) == pytest.approx(2.76, abs=0.005)
    assert pytest.approx(242, abs=0.5) == 2 * 128 * (576 + 512) / (576 * 2)


def test_a_large_replica_is_the_one_of_the_table():
    wanted = {"backend": "trtllm", "system": "h100_sxm", "gemm_quant_mode": "", "tp_size": "8"}
    wanted |= {"model_path": "meta-llama/Llama-3.1-8B-Instruct", "isl": "2048", "osl": "512"}
    eight = serving.per_token("H100 SXM", 2048, 512, gpus=8)
    same(eight, packed("serving", "batch_size", "silicon_tpot_ms", **wanted))
    assert eight.source.startswith("8 × H100 SXM, TensorRT-LLM 1.0.0rc3, measured by NVIDIA")


def test_all_reduces_are_those_of_the_table_and_between_its_sizes_a_line_of_logs():
    wanted = {"kernel_source": "TRTLLM", "tool": "trtllm/1.3.0rc20", "num_gpus": "8"}
    times = packed("custom_all_reduce", "message_size", "us", **NODE, **wanted)
    for elements, seconds in times.items():
        assert serving.all_reduce_seconds("H100 SXM", 8, 2 * elements) == pytest.approx(seconds, rel=1e-12)
    middle = serving.all_reduce_seconds("H100 SXM", 8, 2**19.5)
    assert middle == pytest.approx(math.sqrt(times[2**18] * times[2**19]), rel=1e-12)


def test_lab_18_says_when_one_large_replica_is_faster():
    """By bytes and FLOPs it always is. Measured are 1.29 times for 64 requests, and 0.91 times for 128."""
    one, eight = (serving.per_token("H100 SXM", 2048, 512, gpus=gpus) for gpus in (1, 8))
    assert one.at(8) / eight.at(64) == pytest.approx(1.29, abs=0.005)
    assert one.at(16) / eight.at(128) == pytest.approx(0.91, abs=0.005)
    weights, token = 2 * (32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096), 131072
    head = 2 * 128256 * 4096
    cost = RooflineCost(GPTConfig(128256, 32, 32, 8, 4096, 14336, 8192, tied_embeddings=False), accelerator("H100 SXM"))
    for requests, gpus in ((16, 1), (128, 8)):
        decode = (weights + requests * 2305 * token) / 3.35e12
        flops = (weights - head) * (requests + 2047) + head * requests
        pairs = (requests - 1) * 2304 + 2048 * 2049 / 2
        mixed = (flops + 4 * 32 * 4096 * pairs) / 989.4e12
        expected = [(decode + (requests - 1) / 512 * (mixed - decode)) / gpus]
        sums = [64 * serving.all_reduce_seconds("H100 SXM", 8, 8192 * count) for count in (requests, requests + 2047)]
        expected.append(expected[0] + sums[0] + (requests - 1) / 512 * (sums[1] - sums[0]))
        found = [
            serving.modelled_per_token(cost, requests, 2048, 512, gpus, exchange)
            for exchange in (
                lambda tokens: 0.0,
                lambda tokens: 64 * serving.all_reduce_seconds("H100 SXM", 8, 8192 * tokens),
            )
        ]
        assert found == pytest.approx(expected, rel=1e-9)
    assert [1e3 * seconds for seconds in found] == pytest.approx([2.50, 5.77], abs=0.005)
