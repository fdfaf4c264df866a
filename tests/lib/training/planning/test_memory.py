"""Memory of a plan, against hand counts and the closed forms of ZeRO."""

import pytest
from threeloops.training.planning import LLAMA_8B, Plan, Transformer, memory
from threeloops.training.sharded.cost import model_states

MODEL = Transformer(8, 64, 8, 4, 96, 48)


def of(plan, model=MODEL):
    found = memory(model, plan)
    assert len(found) == plan.pp
    return found


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("dp", "cp", "tp"), [(1, 1, 1), (4, 1, 1), (2, 2, 2)])
def test_states_are_those_of_zero(stage, dp, cp, tp):
    """FSDP's parameter is the float32 master, so its 16-bit copy is among the gathered."""
    (found,) = of(Plan(2 * dp, 64, dp=dp, cp=cp, tp=tp, zero=stage))
    whole = (MODEL.parameters - MODEL.width) // tp  # the last norm is left out
    sizes = [whole // 4] * 4
    wanted = model_states(sizes, dp * cp, stage, parameter_bytes=2 if stage < 3 else 0, gradient_bytes=4)
    assert found.states == pytest.approx(wanted.total - wanted.gradients, rel=1e-3)
    assert found.gradients == pytest.approx(wanted.gradients, rel=1e-3)


def test_fsdp_gathers_two_layers_and_what_is_no_layer():
    (found,) = of(Plan(2, 64, dp=2, zero=3))
    assert found.gathered == 2 * (2 * 48 * 64 + 2 * MODEL.layer_parameters)
    assert of(Plan(2, 64, dp=2, zero=2))[0].gathered == 0
    in_pipeline = of(Plan(8, 64, dp=2, pp=2, zero=3))
    assert [each.gathered for each in in_pipeline] == [2 * (48 * 64 + 4 * MODEL.layer_parameters)] * 2
    assert in_pipeline[0].gradients == 4 * (48 * 64 + 4 * MODEL.layer_parameters), "scattered once, at the end"


def test_one_microbatch_has_no_gradients_when_its_activations_are_there():
    assert of(Plan(4, 64, dp=4))[0].gradients == 0
    assert of(Plan(8, 64, dp=4))[0].gradients > 0


def test_activations_of_a_pipeline():
    """Rank r of p keeps p − r microbatches, of its layers, cut by tp and cp."""
    found = of(Plan(16, 64, pp=4, tp=2, cp=2, microbatch=2))
    layer = 2 * (2 * 64 // 2) * MODEL.saved("none") / 2  # bytes, tokens of two sequences on half of the context
    assert [each.activations for each in found] == [4 * 2 * layer, 3 * 2 * layer, 2 * 2 * layer, 2 * layer]
    chunked = of(Plan(16, 64, pp=4, tp=2, cp=2, microbatch=2, chunks=2))
    assert chunked[0].activations == (2 * 3 + 4 + 1) / 2 * 2 * layer


def test_the_loss_or_a_layer_is_what_is_worked_on():
    tokens = 64
    (whole,) = of(Plan(2, tokens, recompute="none"))
    assert whole.working == 12 * tokens * 48
    full = of(Plan(2, tokens, pp=2, recompute="full"))
    again = 2 * tokens * (MODEL.saved("none") - MODEL.saved("full"))
    assert full[0].working == again and full[1].working == max(again, 12 * tokens * 48)
    assert of(Plan(2, tokens, pp=2))[0].working == 0


def test_tied_ends_are_one_matrix_unless_a_pipeline_parts_them():
    tied = Transformer(8, 64, 8, 4, 96, 48, tied=True)
    assert of(Plan(2, 64, zero=0), tied)[0].states == 14 * (8 * tied.layer_parameters + 48 * 64)
    assert sum(each.states for each in of(Plan(2, 64, pp=2, zero=0), tied)) == 14 * (
        8 * tied.layer_parameters + 2 * 48 * 64
    )


def test_the_whole_is_the_sum_of_its_parts():
    (found,) = memory(LLAMA_8B, Plan(16, 8192, dp=8, microbatch=2, zero=3, recompute="selective"))
    assert found.total == found.states + found.gradients + found.gathered + found.activations + found.working
    assert found.activations == 32 * 2 * 16384 * 31744


@pytest.mark.parametrize(("stage", "pp", "shards"), [(1, 1, 1), (2, 1, 4), (3, 1, 4), (2, 2, 1), (3, 2, 1)])
def test_accumulated_gradients_are_sharded_only_if_each_microbatch_scatters_them(stage, pp, shards):
    found = of(Plan(16, 64, dp=4, pp=pp, zero=stage))
    ends = 48 * 64 * (2 if pp == 1 else 1)
    assert found[0].gradients == 4 * (8 // pp * MODEL.layer_parameters + ends) / shards


def test_experts_are_sharded_over_the_ranks_that_have_the_same_ones():
    """14 bytes per parameter without ZeRO. With ZeRO-1, 2 and a share of 12: 1/dp, and ep/dp for experts."""
    model = Transformer(2, 64, 8, 4, 96, 48, experts=4, experts_per_token=2)
    experts = 2 * 4 * 3 * 64 * 96
    dense = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 64 * 4 + 2 * 64) + 2 * 48 * 64
    assert model.parameters == experts + dense + 64
    (whole,) = of(Plan(8, 64, dp=8, ep=4, zero=0), model)
    assert whole.states == 14 * (experts / 4 + dense)
    (sharded,) = of(Plan(8, 64, dp=8, ep=4, zero=1), model)
    assert sharded.states == pytest.approx((2 + 12 / 2) * experts / 4 + (2 + 12 / 8) * dense)


def test_frozen_weights_have_no_gradients_and_no_optimizer():
    model = Transformer(2, 64, 8, 4, 96, 48, adapter_rank=4, frozen_bits=4)
    adapters = 2 * 4 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 96))
    frozen = 2 * model.layer_parameters + 2 * 48 * 64
    (usage,) = of(Plan(4, 64, zero=0), model)
    assert usage.states == frozen / 2 + 14 * adapters
    assert usage.gradients == 4 * adapters


def test_the_loss_in_parts_needs_a_part_of_the_logits():
    whole, parts = (of(Plan(2, 4096, recompute="none", loss_chunks=n))[0].working for n in (1, 8))
    assert whole == 12 * 4096 * 48 and parts == whole / 8
