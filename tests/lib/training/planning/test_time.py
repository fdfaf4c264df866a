"""Step times, against the simulator of pipelines, the costs of rings, and cases that can be counted by hand."""

from dataclasses import replace

import pytest
from threeloops.hardware import accelerators
from threeloops.training.collectives import Link
from threeloops.training.pipeline import Durations, interleaved, one_f_one_b, simulate
from threeloops.training.planning import Machine, Plan, Transformer, step_time
from threeloops.training.planning.published import node

MODEL = Transformer(8, 64, 8, 4, 96, 1)
FREE = Link(0.0, 1e30)
MACHINE = Machine(8, 80e9, 1e9, 2e9, FREE, FREE)


def headless(model=MODEL):
    """Without a head, all stages are equal."""
    return replace(model, vocabulary=1)


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("chunks", [1, 2])
def test_computation_and_bubble_are_those_of_the_simulated_schedule(pp, rounds, chunks):
    if pp * chunks > 8 or (pp == 1 and chunks > 1):
        return
    m = pp * rounds
    step = step_time(MODEL, MACHINE, Plan(m, 16, pp=pp, chunks=chunks))
    head = 3 * MODEL.head_flops(16) / MACHINE.flops
    forward = MODEL.layer_flops(16, 16) * 8 / pp / chunks / MACHINE.flops
    schedule = one_f_one_b(pp, m) if chunks == 1 else interleaved(pp, m, chunks)
    simulated = simulate(schedule, Durations(forward, backward=2 * forward)).seconds
    assert step.seconds == pytest.approx(simulated + (m + (pp - 1) / chunks) * head, rel=1e-9)
    assert step.compute + step.bubble == pytest.approx(step.seconds)


@pytest.mark.parametrize(("recompute", "passes"), [("none", 3.0), ("full", 4.0)])
def test_recomputation_is_another_forward_and_no_part_of_mfu(recompute, passes):
    step = step_time(MODEL, MACHINE, Plan(4, 16, recompute=recompute))
    forward = 8 * MODEL.layer_flops(16, 16)
    assert step.compute == pytest.approx(4 * (passes * forward + 3 * MODEL.head_flops(16)) / 1e9)
    assert step.mfu == pytest.approx(MODEL.step_flops(4, 16) / step.seconds / 2e9)
    assert step.tokens_per_gpu == pytest.approx(4 * 16 / step.seconds)
    assert step.flops_per_gpu == pytest.approx(2e9 * step.mfu)


def test_tensor_parallelism_pays_four_all_reduces_per_layer():
    machine = replace(MACHINE, inside=Link(1e-3, 1e6))
    step = step_time(MODEL, machine, Plan(2, 16, tp=4))
    all_reduce = 2 * 3 * (1e-3 + 16 * 64 * 2 / 4 / 1e6)
    assert step.tensor == pytest.approx(2 * 8 * 4 * all_reduce)
    assert step.compute == pytest.approx(step_time(MODEL, MACHINE, Plan(2, 16)).compute / 4)


def test_context_parallelism_gathers_keys_and_values_and_scatters_their_gradients():
    machine = replace(MACHINE, between=Link(1e-3, 1e6))
    step = step_time(MODEL, machine, Plan(2, 64, cp=2, tp=4))
    assert step.context == 0 or MODEL.kv_width == 32
    one_way = (2 - 1) * (0.0 + 2 * 2 * 64 * 32 / 4 / 2 / 1e30)
    assert step.context == pytest.approx(2 * 8 * 2 * one_way), "cp of 2 and tp of 4 share a node"
    far = step_time(MODEL, machine, Plan(4, 64, cp=4, tp=4))
    link = machine.link(range(0, 16, 4))
    assert far.context == pytest.approx(4 * 8 * 2 * 3 * (link.latency + 2 * 2 * 64 * 32 / 4 / 4 / link.bandwidth))


def test_the_first_microbatch_waits_for_each_transfer():
    machine = replace(MACHINE, inside=Link(0.5, 1e30))
    free, slow = (step_time(MODEL, each, Plan(4, 16, pp=4)) for each in (MACHINE, machine))
    assert slow.bubble - free.bubble == pytest.approx(3 * 2 * 0.5)


@pytest.mark.parametrize(("zero", "scatters"), [(0, 1), (1, 1), (2, 2)])
def test_gradients_are_hidden_behind_the_last_backward_but_for_the_last_layer(zero, scatters):
    """ZeRO-2 scatters after the backward of each of the two microbatches."""
    link = Link(0.0, 1e5)
    machine = replace(MACHINE, inside=link)
    step = step_time(MODEL, machine, Plan(4, 16, dp=2, zero=zero))
    parameters = 8 * MODEL.layer_parameters + MODEL.embedding_parameters
    gather, scatter = parameters * 2 / 2 / 1e5, parameters * 4 / 2 / 1e5
    forward = 8 * MODEL.layer_flops(16, 16) / 1e9
    backward = 2 * forward + 3 * MODEL.head_flops(16) / 1e9
    assert scatter > backward and gather > forward
    assert step.data == pytest.approx(scatters * (scatter - backward) + gather - forward + scatter / 8)
    fast = step_time(MODEL, replace(MACHINE, inside=Link(0.0, 1e12)), Plan(4, 16, dp=2, zero=zero))
    assert fast.data == pytest.approx(parameters * 4 / 2 / 1e12 / 8)


def test_the_rank_with_the_most_layers_sets_the_pace():
    """Of five layers on two ranks the first has three."""
    model = replace(MODEL, layers=5)
    machine = replace(MACHINE, inside=Link(0.0, 1e5))
    step = step_time(model, machine, Plan(4, 16, pp=2, dp=2))
    forward = model.layer_flops(16, 16) / 1e9
    parameters = 3 * model.layer_parameters + model.embedding_parameters
    gather, scatter = parameters * 2 / 2 / 1e5, parameters * 4 / 2 / 1e5
    assert step.compute == pytest.approx(2 * 3 * 3 * forward)
    assert step.data == pytest.approx(gather - 3 * forward + scatter - 6 * forward + scatter / 3)


def test_collectives_inside_layers_hide_those_between_replicas_too():
    model = replace(MODEL, layers=5)
    slow, slower = (
        step_time(model, replace(MACHINE, gpus_per_node=2, inside=Link(a, 1e30), between=Link(0.0, 1e5)), plan)
        for plan in [Plan(4, 16, pp=2, dp=2, tp=2)]
        for a in (1e-3, 2e-3)
    )
    assert slow.tensor == pytest.approx(2 * 3 * 8 * 1e-3), "two microbatches, three layers"
    assert slow.data - slower.data == pytest.approx(3 * 8 * 1e-3), "all of it, where all is exposed"
    assert slower.bubble - slow.bubble == pytest.approx(3 * 8 * 1e-3), "one microbatch fills the pipeline"


def test_fsdp_gathers_and_scatters_for_each_microbatch():
    machine = replace(MACHINE, inside=Link(0.0, 1e5))
    once, twice = (step_time(MODEL, machine, Plan(2 * n, 16, dp=2, zero=3)).data for n in (1, 2))
    parameters = 8 * MODEL.layer_parameters + MODEL.embedding_parameters
    gather, scatter = parameters * 2 / 2 / 1e5, parameters * 4 / 2 / 1e5
    forward = 8 * MODEL.layer_flops(16, 16) / 1e9
    backward = 2 * forward + 3 * MODEL.head_flops(16) / 1e9
    per_pass = gather - forward + gather + scatter - backward
    assert twice - once == pytest.approx(per_pass)
    assert once == pytest.approx(per_pass + (gather + scatter) / 8)


def test_one_gpu_waits_for_nobody():
    step = step_time(MODEL, replace(MACHINE, inside=Link(1.0, 1.0), between=Link(1.0, 1.0)), Plan(3, 16))
    assert (step.tensor, step.context, step.bubble, step.data) == (0, 0, 0, 0)
    assert step.mfu == pytest.approx(0.5)


def test_full_recomputation_repeats_the_collectives_of_forward():
    machine = replace(MACHINE, inside=Link(1e-3, 1e6))
    none, full = (step_time(MODEL, machine, Plan(2, 16, tp=4, cp=2, recompute=what)) for what in ("none", "full"))
    assert full.tensor == pytest.approx(1.5 * none.tensor)
    assert full.context == pytest.approx(1.5 * none.context) or none.context == 0


def test_tokens_travel_to_their_experts_and_back_in_both_passes():
    """On nodes of two, half of what each of four ranks sends crosses the network, and a quarter stays in the node."""
    model = replace(MODEL, experts=4, experts_per_token=2)
    machine = replace(MACHINE, gpus_per_node=2, inside=Link(0.0, 1e6), between=Link(0.0, 1e5))
    sent = 2 * 2 * 16 * 64  # bytes: each token twice
    step = step_time(model, machine, Plan(8, 16, dp=4, ep=4))
    assert step.expert == pytest.approx(2 * 8 * 4 * sent / 2 / 1e5)
    assert step_time(model, machine, Plan(8, 16, dp=4, ep=1)).expert == 0
    near = step_time(model, machine, Plan(8, 16, dp=4, ep=2))
    assert near.expert == pytest.approx(2 * 8 * 4 * sent / 2 / 1e6)


def test_frozen_weights_save_a_third_of_the_products_and_all_but_the_adapters_traffic():
    model = replace(MODEL, adapter_rank=1)
    tokens, sequence = 16, 16
    products = 2 * tokens * sum(model.matrices.values())
    attention = 2 * tokens * sequence * model.width
    adapters = 2 * tokens * model.adapter_parameters
    assert model.layer_flops(tokens, sequence) == products + attention + adapters
    assert model.backward_flops(tokens, sequence) == products + 2 * (attention + adapters)
    step = step_time(model, replace(MACHINE, inside=Link(0.0, 1e8)), Plan(2, 16, dp=2))
    assert step.data == pytest.approx(8 * model.adapter_parameters * 4 / 2 / 1e8 / 8)


def test_smaller_types_speed_up_the_products_of_layers_only():
    fast = replace(MACHINE, product_flops=2 * MACHINE.flops)
    slow, quick = (step_time(MODEL, machine, Plan(2, 16)).compute for machine in (MACHINE, fast))
    products = 2 * 16 * sum(MODEL.matrices.values()) / MACHINE.flops
    assert slow - quick == pytest.approx(2 * 8 * 3 * products / 2)


@pytest.mark.parametrize(("ranks", "lanes"), [(range(2), 1), (range(4), 3), (range(8), 7), (range(0, 8, 4), 1)])
def test_a_ring_in_a_mesh_has_the_links_to_all_its_ranks(ranks, lanes):
    machine = replace(MACHINE, inside=Link(1e-6, 64e9), neighbours=7)
    assert machine.link(ranks) == Link(1e-6, lanes * 64e9)


def test_a_bridge_joins_two_cards_and_no_more():
    bridge = Link(1e-6, 200e9)
    machine = replace(MACHINE, inside=Link(2e-6, 20e9), bridge=bridge)
    assert machine.link(range(2)) == bridge
    assert machine.link(range(4)) == machine.link(range(0, 4, 2)) == machine.inside


@pytest.mark.parametrize("name", accelerators())
def test_every_accelerator_of_the_table_is_a_node_or_says_what_it_lacks(name):
    one = accelerators()[name]
    if not one.rates.keys() & {"bf16", "fp16"}:
        with pytest.raises(LookupError, match=f"{name}: no fp16 rate is known \\(.+\\)"):
            node(name, 50e9)
    elif not one.link_bandwidth and not one.host_link_bandwidth:
        with pytest.raises(LookupError, match=f"{name}: no bandwidth of a link to its neighbours is known \\(.+\\)"):
            node(name, 50e9)
    else:
        machine = node(name, 50e9)
        assert machine.memory_bytes == one.memory_bytes and 0 < machine.inside.bandwidth < 2e12
