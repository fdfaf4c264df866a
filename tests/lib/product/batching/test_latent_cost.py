"""The cost of a DeepSeek-V3 step from its kernels: its sizes, its bounds, and published points that it meets."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from threeloops.hardware import accelerator
from threeloops.inner.predict.silicon import StepHost, fitted
from threeloops.product.batching import StepShape
from threeloops.product.batching.simulated import LatentKernelCost, LatentModel

from benchmarks import silicon_disaggregated
from benchmarks.silicon import judged_serving
from benchmarks.silicon_disaggregated import Pair, balanced, judged_disaggregated, predictable

TENSOR = LatentKernelCost(ranks=8, groups=1, expert_ranks=8)
DATA = LatentKernelCost(ranks=1, groups=8, expert_ranks=8)


@pytest.fixture(scope="module")
def judged():
    return judged_disaggregated()


def test_the_decoding_side_of_published_points_is_met(judged):
    """No constant was fitted to them. The median is below that of aggregated points on a GPU that no fit has seen."""
    assert judged["chose the skew"]["n"] + judged["held out"]["n"] == 59
    assert judged["held out"]["n"] >= 25
    assert judged["held out"]["median"] <= 0.09
    assert judged["held out"]["p90"] <= 0.2
    assert judged["aggregated points beside them"]["median"] <= 0.13


def test_the_winner_of_a_pair_is_named(judged):
    """Always naming the aggregated point would be right in 54% of them, and always the other in 46%."""
    assert judged["pairs"]["n"] >= 45
    assert 0.4 < judged["pairs"]["disaggregated won"] < 0.6
    assert judged["pairs"]["named rightly"] >= 0.87
    assert judged["pairs that differ by more than 10%"]["named rightly"] >= 0.9


def test_the_page_shows_these_errors(judged):
    """If it does not, the errors have changed: write the new ones into the page."""
    page = Path(__file__).parents[4] / "docs/predictions.md"
    shown = page.read_text().partition("<!-- serving")[2].partition("<!-- end of serving")[0]
    served = judged_serving(lambda engine: fitted(StepHost, "Hopper", engine))
    rows = (
        judged["held out"],
        judged["aggregated points beside them"],
        served["held out"],
        served["B200, in no fit"],
    )
    lines = [line for line in shown.splitlines() if line.startswith("| ")][1:]
    for line, row in zip(lines, rows, strict=True):
        assert line.endswith(f"| {row['n']} | {row['median']:.1%} | {row['p90']:.1%} | {row['bias']:.2f} |")
    text = " ".join(page.read_text().split())
    named, clear = judged["pairs"], judged["pairs that differ by more than 10%"]
    won = round(named["disaggregated won"] * named["n"])
    right, of_clear = (round(of["named rightly"] * of["n"]) for of in (named, clear))
    assert f"{named['n']} pairs of" in text and f"in {won} of them" in text
    assert f"in {right} ({named['named rightly']:.1%}), and in {of_clear} of the {clear['n']} whose" in text


def test_a_pair_is_named_rightly_if_both_orders_agree():
    assert Pair((1.0, 2.0), (3.0, 4.0)).is_named_rightly
    assert not Pair((1.0, 2.0), (4.0, 3.0)).is_named_rightly
    assert Pair((1.0, 1.5), (4.0, 3.0)).margin == 0.5


def test_requests_come_no_faster_than_prompts_are_computed():
    """With a hundredth of the GPUs for prompts, the batch that decodes shrinks, and each of its tokens comes sooner."""
    row = next(row for row in predictable("disagg") if row["decode_batch"] == 64 and row["isl"] == 8192)
    stated, starved = (balanced(dict(row, prefill_workers=workers), 1.01) for workers in (100, 0.05))
    assert stated.batch > 60 and starved.batch < 10
    assert starved.rate < stated.rate and starved.seconds < stated.seconds
    requests = row["decode_batch"] * row["decode_workers"] * row["decode_dp"]
    assert stated.rate * row["osl"] * stated.seconds < requests


def test_points_without_published_kernels_are_left_out():
    assert {row["device"] for row in predictable("disagg")} == {"H200 SXM", "B200"}, "workers of H100 span two nodes"
    assert {row["gemm_quant_mode"] for row in predictable("agg")} == {"fp8"}
    assert set(silicon_disaggregated.SKEWS) == {0.0, 1.01, 1.2}


def test_the_sizes_are_those_of_deepseek_v3():
    """The paper counts 671 billion parameters, of which a token uses 37 billion."""
    model = LatentModel()
    attention = model.width * (model.query_rank + model.latent + model.rotary)
    attention += model.query_rank * model.heads * (model.head_dim + model.rotary)
    attention += model.latent * model.heads * 2 * model.head_dim + model.heads * model.head_dim * model.width
    expert = 3 * model.width * model.expert_width
    sparse = model.layers - model.dense_layers
    rest = model.layers * attention + model.dense_layers * 3 * model.width * model.mlp_width
    rest += 2 * model.vocabulary_size * model.width
    assert rest + sparse * (model.experts + 1) * expert == pytest.approx(671e9, rel=0.002)
    assert rest + sparse * (model.top_k + 1) * expert == pytest.approx(37e9, rel=0.03)


@pytest.mark.parametrize("cost", [TENSOR, DATA])
def test_no_step_is_faster_than_its_weights_can_be_read(cost):
    """At this batch every expert has tokens, and a GPU holds an eighth of them."""
    experts = 58 * 256 * 3 * 7168 * 2048 / 8
    floor = experts / accelerator("H200 SXM").memory_bandwidth
    assert floor < cost.even(np.array(256.0), 1000.0) < 6 * floor


def test_a_step_is_what_even_steps_add_up_to():
    for cost in (TENSOR, DATA):
        step = StepShape(((1535, 1, True),) * 16)
        assert cost(step) == pytest.approx(float(cost.even(np.array(16.0), 1536.0)), rel=1e-12)
    mixed = StepShape(((999, 1, True),) * 4 + ((0, 512, True),))
    assert TENSOR(mixed) == pytest.approx(float(TENSOR.even(np.array(4.0), 1000.0, 512.0)), rel=1e-12)


def test_later_chunks_of_a_prompt_cost_more_and_more_gpus_less():
    first, last = (TENSOR(StepShape(((start, 512, False),))) for start in (0, 7168))
    assert first < last
    steps = [StepShape(((1000, 1, True),) * count) for count in (1, 8, 64)]
    assert sorted(map(TENSOR, steps)) == list(map(TENSOR, steps))
    four = replace(TENSOR, ranks=4, expert_ranks=4)
    assert four(steps[2]) > TENSOR(steps[2]) > four(steps[2]) / 2


def test_groups_share_the_experts_and_exchange_tokens():
    """Eight GPUs hold an eighth of the experts each, and all weights of attention, which tensor parallelism splits."""
    step = StepShape(((1000, 1, True),) * 8)
    alone = replace(DATA, groups=1, expert_ranks=1)
    assert DATA(step) < alone(step), "an eighth of the experts each"
    assert DATA(step) > TENSOR(step), "each group reads all weights of attention"


def test_what_is_not_known_is_refused_by_name():
    with pytest.raises(ValueError, match="ranks = 3: expected a divisor of heads = 128"):
        LatentKernelCost(ranks=3)
    with pytest.raises(ValueError, match="expert_ranks = 3: expected a divisor of experts = 256 and of the 8 GPUs"):
        LatentKernelCost(expert_ranks=3)
    with pytest.raises(LookupError, match="was not measured"):
        LatentKernelCost(device="A100 SXM 80GB")
    with pytest.raises(LookupError, match="StepHost on Hopper: 'dynamo' was not measured"):
        LatentKernelCost(engine="dynamo")
