"""A training step from its kernels: published runs, which no constant was fitted to, and what physics allows."""

from dataclasses import replace
from pathlib import Path

import pytest
from threeloops.hardware.accelerators import accelerator
from threeloops.training.by_kernels import Assumptions, kernel_step
from threeloops.training.planning import LLAMA_8B, LLAMA_70B, PUBLISHED, Plan, a100_node, h100_node

from benchmarks.silicon_training import judged_training, seconds_by_kernels


def test_published_runs_are_met_and_no_source_gets_worse():
    table = judged_training()
    assert table["all"]["n"] == 15
    assert table["all"]["mean"] <= 0.08
    assert table["all"]["largest"] <= 0.20
    for source, errors in table.items():
        assert errors["mean"] < errors["mean of step_time"], source


def test_the_page_shows_these_errors():
    """A row per source, and one for all, in the order of the table."""
    page = (Path(__file__).parents[4] / "docs/predictions.md").read_text()
    shown = page.partition("| source |")[2].partition("\n\n")[0].splitlines()[2:]
    for row, errors in zip(shown, judged_training().values(), strict=True):
        percents = (f"{errors['mean']:.1%}", f"{errors['largest']:.0%}", f"{errors['mean of step_time']:.1%}")
        assert [cell.strip() for cell in row.split("|")[2:6]] == [str(errors["n"]), *percents]


def test_the_assumptions_matter():
    """Each is wrong somewhere: with an assumption replaced, a run that it is about is missed by more."""
    runs = {run.name: run for run in PUBLISHED}
    titan = runs["8B on 8"]
    assert seconds_by_kernels(titan, power=1.0) < 0.92 * titan.seconds
    megatron = runs["1.7B"]
    assert seconds_by_kernels(megatron, attention="flash2") < 0.8 * megatron.seconds
    long = runs["405B, 131,072 tokens"]
    assert seconds_by_kernels(long, attention="flash2") > 1.3 * long.seconds


PLANS = [
    Plan(64, 8192, dp=8, zero=3),
    Plan(64, 8192, dp=8, zero=3, recompute="full"),
    Plan(256, 8192, dp=8, tp=8, pp=4, zero=1),
    Plan(256, 8192, dp=8, cp=2, tp=4, pp=4, chunks=2),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize(("node", "device"), [(h100_node, "H100 SXM"), (a100_node, "A100 SXM 80GB")])
@pytest.mark.parametrize("attention", ["unfused", "flash2", "fastest"])
def test_no_step_is_faster_than_the_peak(plan, node, device, attention):
    step = kernel_step(LLAMA_70B, node(), plan, device, Assumptions(attention=attention))
    floor = LLAMA_70B.step_flops(plan.batch, plan.sequence) / plan.gpus / accelerator(device).rate("bf16")
    assert step.seconds > floor
    assert all(part >= 0 for part in vars(step).values())


def test_recomputing_costs_a_forward_pass_and_its_collectives():
    plan = Plan(64, 8192, dp=4, tp=8, zero=1)
    plain, full = (
        kernel_step(LLAMA_70B, h100_node(), replace(plan, recompute=how), "H100 SXM") for how in ("none", "full")
    )
    assert full.tensor == pytest.approx(1.5 * plain.tensor)
    assert 0.25 < full.recomputed / (plain.products + plain.attention + plain.light) < 0.4


def test_recomputing_every_other_product_costs_their_share():
    """An 8B model repeats key, output and up: 4096 · (1024 + 4096 + 14336) of 218.1 million weights per layer."""
    plan = Plan(16, 8192, dp=8, zero=3, recompute="selective")
    step = kernel_step(LLAMA_8B, h100_node(), plan, "H100 SXM")
    assert (step.recomputed - step.light / 3) / (step.products / 3) == pytest.approx(0.3654, abs=0.03)


def test_recomputing_gathers_the_keys_again():
    plan = Plan(8, 32768, dp=1, cp=8, zero=1)
    plain, full = (
        kernel_step(LLAMA_8B, h100_node(), replace(plan, recompute=how), "H100 SXM") for how in ("none", "full")
    )
    assert full.context == pytest.approx(1.5 * plain.context) and plain.context > 0


def test_zero_2_scatters_gradients_after_every_microbatch():
    """Between slow nodes nothing hides them: with 4 microbatches, the step waits for four scatters and not one."""
    slow = h100_node()
    slow = replace(slow, between=replace(slow.between, bandwidth=1e9))
    one, two = (kernel_step(LLAMA_8B, slow, Plan(64, 2048, dp=16, zero=zero), "H100 SXM").data for zero in (1, 2))
    assert 1.7 * one < two < 4 * one


def test_heads_may_have_a_width_of_their_own():
    """Heads of 256 in place of 128: twice the queries, keys and values, as in Qwen3 and Gemma."""
    plan = Plan(8, 8192, dp=8, zero=1)
    plain, wide = (kernel_step(replace(LLAMA_8B, head_dim=size), h100_node(), plan, "H100 SXM") for size in (128, 256))
    assert plain == kernel_step(LLAMA_8B, h100_node(), plan, "H100 SXM")
    assert 1.5 < wide.attention / plain.attention < 2.5
    assert wide.products > 1.1 * plain.products


@pytest.mark.parametrize("power", [0.3, 500 / 700, 1.0])
def test_a_lower_power_limit_slows_computing_only(power):
    plan = Plan(16, 8192, dp=8, zero=3)
    full, limited = (
        kernel_step(LLAMA_8B, h100_node(), plan, "H100 SXM", Assumptions(power=share)) for share in (1, power)
    )
    assert limited.products == pytest.approx(full.products / power ** (1 / 3))
    assert limited.light == full.light


def test_more_replicas_and_microbatches_scale_as_they_should():
    one = kernel_step(LLAMA_8B, h100_node(), Plan(8, 8192, dp=8, zero=1), "H100 SXM")
    two = kernel_step(LLAMA_8B, h100_node(), Plan(16, 8192, dp=8, zero=1), "H100 SXM")
    assert two.products == pytest.approx(2 * one.products)
    assert two.optimizer == one.optimizer and two.data == one.data


def test_models_whose_kernels_are_not_here_are_refused():
    plan = Plan(8, 8192, dp=8, zero=3)
    experts = replace(LLAMA_8B, experts=8, experts_per_token=2)
    for model in (experts, replace(LLAMA_8B, adapter_rank=16)):
        with pytest.raises(ValueError, match="only dense models that are trained in 16 bits have kernels here"):
            kernel_step(model, h100_node(), plan, "H100 SXM")
    with pytest.raises(ValueError, match="product_flops = 1200000000000000.0: expected 0, 0 and None"):
        kernel_step(LLAMA_8B, replace(h100_node(), product_flops=1.2e15), plan, "H100 SXM")


def test_a_device_that_nobody_measured_is_refused():
    with pytest.raises(LookupError, match="Gemm: 'MI300X' was not measured"):
        kernel_step(LLAMA_8B, h100_node(), Plan(8, 8192, dp=8, zero=3), "MI300X")
