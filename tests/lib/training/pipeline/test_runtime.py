"""Schedules on the virtual cluster: the gradients of one process, the times of the simulator to the last digit, and the
messages and the memory that the schedule says."""

import gc
import weakref
from itertools import pairwise

import pytest
import threeloops.training.pipeline.runtime as runtime
import torch
import torch.distributed as dist
from charged import ChargedLinear
from pipelines import drawn, written
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.cluster import Cluster, Deadlock, RankFailed, now, one_node, run_on_processes, uniform
from threeloops.training.mesh import Mesh
from threeloops.training.pipeline import (
    Durations,
    IllegalSchedule,
    Timeline,
    Transfers,
    gpipe,
    gpt_stages,
    interleaved,
    one_f_one_b,
    run_schedule,
    simulate,
    zb_h1,
    zb_v,
)
from threeloops.training.pipeline.messages import device_of_messages, rounds
from torch import nn

ROWS, WIDTH = 3, 6
STREAM = torch.empty(ROWS, WIDTH, dtype=torch.float64, device="meta")
BYTES = ROWS * WIDTH * 8
DURATIONS = Durations(forward=1.1e-3, input_gradient=1.3e-3, weight_gradient=0.7e-3)
SLOW = 0.5e-3, 1e5
"""Latency and bandwidth of a link on which a message takes about as long as a forward."""

SCHEDULES = {
    "GPipe": gpipe(4, 6),
    "1F1B": one_f_one_b(4, 6),
    "1F1B with fewer microbatches than ranks": one_f_one_b(4, 2),
    "1F1B with one microbatch": one_f_one_b(3, 1),
    "one rank": one_f_one_b(1, 3),
    "interleaved": interleaved(2, 4, chunks=3),
    "interleaved on one rank": interleaved(1, 2, chunks=2),
    "ZB-H1": zb_h1(4, 7),
    "ZB-H1 with one microbatch": zb_h1(2, 1),
    "ZB-V": zb_v(3, 7),
    "ZB-V on one rank": zb_v(1, 2),
    **{f"at random, {seed}": drawn(seed, 3, 1 + seed % 3, 3) for seed in range(5)},
}


def mlp(stages, layer=nn.Linear):
    torch.manual_seed(0)
    return [nn.Sequential(layer(WIDTH, WIDTH), nn.Tanh(), layer(WIDTH, WIDTH)).double() for _ in range(stages)]


def batches(microbatches, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator) for _ in range(microbatches)]
        for _ in range(2)
    ]


def gradients(stages):
    return {
        stage: {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}
        for stage, module in stages.items()
    }


def mine(schedule, stages, group=None):
    rank = dist.get_rank(group) if dist.is_initialized() else 0
    return {stage: stages[stage] for stage in schedule.stages_of(rank)}


def mlp_step(schedule, durations=None, layer=nn.Linear, frozen=(), group=None, seed=1, stream=STREAM, tags=None):
    """A step, and the gradients of this rank."""
    stages = mlp(schedule.stages, layer)
    for stage in frozen:
        stages[stage].requires_grad_(False)
    own = mine(schedule, stages, group)
    inputs, targets = batches(schedule.microbatches, seed)
    step = run_schedule(
        schedule, own, inputs, targets, nn.functional.mse_loss, stream, durations=durations, group=group, tags=tags
    )
    return step, gradients(own)


def alone(schedule, frozen=(), seed=1):
    """The loss and the gradients of one process that computes the mean over all microbatches at once."""
    stages = mlp(schedule.stages)
    for stage in frozen:
        stages[stage].requires_grad_(False)
    inputs, targets = (torch.cat(each) for each in batches(schedule.microbatches, seed))
    loss = nn.functional.mse_loss(nn.Sequential(*stages)(inputs), targets)
    loss.backward()
    return loss.detach(), gradients(dict(enumerate(stages)))


def assert_same(run_results, schedule, expected):
    loss, of_stages = expected
    last = schedule.placement[-1]
    for rank, (step, found) in enumerate(run_results):
        assert sorted(found) == schedule.stages_of(rank)
        for stage in found:
            torch.testing.assert_close(found[stage], of_stages[stage], rtol=1e-12, atol=1e-15)
        assert (step.loss is None) == (rank != last)
    torch.testing.assert_close(run_results[last][0].loss, loss, rtol=1e-12, atol=1e-15)


@pytest.fixture(scope="module", params=SCHEDULES, ids=str)
def executed(request):
    """A schedule, and its run on links where messages queue."""
    schedule = SCHEDULES[request.param]
    return schedule, Cluster(uniform(schedule.ranks, *SLOW)).run(mlp_step, schedule, DURATIONS)


def test_gradients_and_loss_are_those_of_one_process(executed):
    schedule, run = executed
    assert_same(run.results, schedule, alone(schedule))


def test_every_action_begins_and_ends_when_the_simulator_says(executed):
    schedule, run = executed
    predicted = simulate(schedule, DURATIONS, Transfers(run.topology, BYTES))
    assert [step.row for step, _ in run.results] == predicted.rows
    assert run.seconds == predicted.seconds
    assert Timeline([step.row for step, _ in run.results]).bubble == predicted.bubble


def test_activations_go_up_and_gradients_down_and_nothing_else_travels(executed):
    schedule, run = executed
    expected = [[0] * schedule.ranks for _ in range(schedule.ranks)]
    for one, other in zip(schedule.placement, schedule.placement[1:], strict=False):
        if one != other:
            expected[one][other] += BYTES * schedule.microbatches
            expected[other][one] += BYTES * schedule.microbatches
    assert run.bytes == expected
    assert {message.size for message in run.messages} <= {BYTES}


def test_times_are_the_simulators_where_links_share_ports_too():
    schedule, topology = interleaved(4, 8), one_node("H100 SXM", 4)
    durations = Durations(2e-9, 2e-9, 1e-9)
    run = Cluster(topology).run(mlp_step, schedule, durations)
    predicted = simulate(schedule, durations, Transfers(topology, BYTES))
    assert [step.row for step, _ in run.results] == predicted.rows and run.seconds == predicted.seconds
    assert run.seconds > simulate(schedule, durations).seconds


@pytest.mark.parametrize("schedule", [gpipe(3, 4), one_f_one_b(3, 5), interleaved(2, 4)], ids=["GPipe", "1F1B", "int."])
def test_layers_that_charge_their_own_time(schedule):
    """Two of 0.1 ms and 0.2 ms per stage; sums of floats differ in their last digits."""
    run = Cluster(uniform(schedule.ranks, *SLOW)).run(mlp_step, schedule, None, ChargedLinear)
    predicted = simulate(schedule, Durations(forward=2e-4, backward=4e-4), Transfers(run.topology, BYTES))
    assert run.seconds == pytest.approx(predicted.seconds, rel=1e-12)


@pytest.mark.parametrize("frozen", [(0,), (1,), (2, 3), (0, 1, 2), (1, 2, 3)])
@pytest.mark.parametrize("schedule", [one_f_one_b(4, 3), zb_v(2, 3)], ids=["1F1B", "ZB-V"])
def test_frozen_stages(schedule, frozen):
    run = Cluster(schedule.ranks).run(mlp_step, schedule, None, nn.Linear, frozen)
    assert_same(run.results, schedule, alone(schedule, frozen))


class Cut(nn.Module):
    """Hands on what no gradient comes back for."""

    def forward(self, x):
        return 2 * x.detach()


def cut_in_the_middle(schedule):
    stages = mlp(schedule.stages)
    stages[1] = Cut()
    own = mine(schedule, stages)
    inputs, targets = batches(schedule.microbatches)
    run_schedule(schedule, own, inputs, targets, nn.functional.mse_loss, STREAM)
    return gradients(own)


@pytest.mark.parametrize("schedule", [one_f_one_b(3, 2), zb_h1(3, 2)], ids=["1F1B", "ZB-H1"])
def test_a_stage_that_cuts_the_graph_sends_zeros(schedule):
    first, _, last = Cluster(3).run(cut_in_the_middle, schedule).results
    assert all(not gradient.any() for gradient in first[0].values())
    assert all(gradient.any() for gradient in last[2].values())


def of_many_widths(schedule):
    """Gradients where every stage hands on another shape."""
    widths = range(WIDTH, WIDTH + schedule.stages + 1)
    torch.manual_seed(0)
    stages = [nn.Linear(a, b).double() for a, b in pairwise(widths)]
    streams = [torch.empty(ROWS, width, dtype=torch.float64) for width in widths[1:-1]]
    inputs, _ = batches(schedule.microbatches)
    own = mine(schedule, stages)
    run_schedule(schedule, own, inputs, inputs, lambda output, target: output.sin().mean(), streams)
    whole = nn.Sequential(*(nn.Linear(a, b).double() for a, b in pairwise(widths)))
    whole.load_state_dict(nn.Sequential(*stages).state_dict())
    whole(torch.cat(inputs)).sin().mean().backward()
    return gradients(own), gradients({stage: whole[stage] for stage in own})


@pytest.mark.parametrize("schedule", [one_f_one_b(4, 5), interleaved(2, 4), zb_v(2, 3)], ids=["1F1B", "int.", "ZB-V"])
def test_each_stage_may_hand_on_a_shape_of_its_own(schedule):
    for found, expected in Cluster(schedule.ranks).run(of_many_widths, schedule).results:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def pipelines_side_by_side(schedule):
    """Two pipelines of two ranks, 0 and 2 beside 1 and 3, each with a batch of its own."""
    mesh = Mesh(pp=2, dp=2)
    group = mesh.connect("pp")["pp"]
    return mlp_step(schedule, None, nn.Linear, (), group, seed=dist.get_rank() % 2)


@pytest.mark.parametrize("schedule", [one_f_one_b(2, 3), zb_v(2, 4)], ids=["1F1B", "ZB-V"])
def test_ranks_are_those_of_the_group(schedule):
    results = Cluster(4).run(pipelines_side_by_side, schedule).results
    for replica in (0, 1):
        assert_same(results[replica::2], schedule, alone(schedule, seed=replica))


# GPT


def gpt(layers, tied):
    torch.manual_seed(0)
    sizes = {"vocabulary_size": 17, "heads": 2, "kv_heads": 1, "width": 8, "mlp_width": 12, "max_sequence": 5}
    return GPT(GPTConfig(layers=layers, tied_embeddings=tied, **sizes)).double()


def tokens_of(microbatches):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(17, (2, 5), generator=generator) for _ in range(2 * microbatches)]


def gpt_steps(schedule, layers, tied, steps, tags=None):
    """Gradients by the model's own names, accumulated over steps of different batches."""
    stages = gpt_stages(gpt(layers, tied), schedule.stages)
    own, m = mine(schedule, stages), schedule.microbatches
    stream = torch.empty(2, 5, 8, dtype=torch.float64)
    for step in range(steps):
        tokens = tokens_of(m)[step * m :][:m]
        run_schedule(schedule, own, tokens, [each.roll(1) for each in tokens], stages[-1].loss, stream, tags=tags)
    return {name: p.grad for module in own.values() for name, p in module.named_parameters()}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    ("schedule", "layers"),
    [
        (gpipe(2, 3), 2),
        (one_f_one_b(3, 4), 4),
        (one_f_one_b(4, 2), 2),
        (interleaved(2, 2), 4),
        (zb_h1(3, 3), 3),
        (zb_v(2, 3), 5),
        (zb_v(2, 2), 1),
        (one_f_one_b(1, 2), 1),
    ],
    ids=["GPipe", "1F1B", "more stages than layers", "interleaved", "ZB-H1", "ZB-V", "V, one layer", "one rank"],
)
def test_a_gpt_has_the_gradients_of_one_process_whatever_is_tied_and_however_often(schedule, layers, tied):
    results = Cluster(schedule.ranks).run(gpt_steps, schedule, layers, tied, 2).results
    whole, tokens = gpt(layers, tied), tokens_of(schedule.microbatches)
    for each in tokens:
        (whole(each, each.roll(1)) / schedule.microbatches).backward()
    expected = {name: p.grad for name, p in whole.named_parameters()}
    if tied:
        expected["head.weight"] = expected["embedding.weight"]
    for found in results:
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-11, atol=1e-14, msg=name)
    assert set().union(*results) >= dict(whole.named_parameters()).keys()
    if tied:
        copies = [found[name] for found in results for name in ("embedding.weight", "head.weight") if name in found]
        assert all(torch.equal(copies[0], copy) for copy in copies), "both ends take the same optimizer step"


# Memory


class Kept(torch.autograd.Function):
    """Counts the forwards that have left something for their backward."""

    now = most = 0

    @staticmethod
    def forward(ctx, x):
        ctx.token = Token()
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Token:
    def __init__(self):
        Kept.now += 1
        Kept.most = max(Kept.most, Kept.now)

    def __del__(self):
        Kept.now -= 1


class Keeping(nn.Linear):
    def forward(self, x):
        return Kept.apply(super().forward(x)) if self.bias is None else super().forward(Kept.apply(x))


def most_kept(schedule):
    gc.disable()  # nothing is to stay until it runs
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(WIDTH, WIDTH), Keeping(WIDTH, WIDTH)).double() for _ in range(schedule.stages)]
    run_schedule(schedule, mine(schedule, stages), *batches(schedule.microbatches), nn.functional.mse_loss, STREAM)
    return Kept.most, Kept.now


@pytest.mark.parametrize(
    "schedule", [gpipe(3, 6), one_f_one_b(3, 6), interleaved(2, 4), zb_h1(3, 6), zb_v(2, 5)], ids=lambda s: str(s.ranks)
)
def test_a_rank_keeps_as_many_activations_as_its_row_says_and_none_afterwards(schedule):
    results = Cluster(schedule.ranks).run(most_kept, schedule).results
    assert list(results) == [(peak, 0) for peak in simulate(schedule).peak()]


def watched_step(schedule):
    """When each message was asked for, and how many activations that were sent upwards were there at most."""
    isend, irecv, asked, sent, most = dist.isend, dist.irecv, [], [], 0

    def watched_isend(tensor, *, group_dst, **options):
        nonlocal most
        if group_dst > dist.get_rank():
            sent.append(weakref.ref(tensor))
            most = max(most, sum(each() is not None for each in sent))
        return isend(tensor, group_dst=group_dst, **options)

    def watched_irecv(tensor, **options):
        asked.append(now())
        return irecv(tensor, **options)

    dist.isend, dist.irecv = watched_isend, watched_irecv
    step, _ = mlp_step(schedule, DURATIONS)
    return step.row, asked, most


@pytest.fixture(scope="module")
def watched():
    schedule = one_f_one_b(3, 8)
    return schedule, Cluster(uniform(3, *SLOW)).run(watched_step, schedule).results


def test_an_input_is_asked_for_before_the_action_ahead_of_it_begins(watched):
    schedule, results = watched
    for row, asked, _ in results:
        waits = [k for k, each in enumerate(row) if schedule.source(each.action) is not None]
        assert len(asked) == len(waits)
        for k, at in zip(waits, asked, strict=True):
            assert (at <= row[k - 1].start and at >= row[k - 2].end) if k > 1 else at <= row[k].start


def test_an_activation_that_was_sent_is_let_go_when_its_gradient_is_there(watched):
    assert [most for _, _, most in watched[1]] == [3, 2, 0]


# Without tags, as on NCCL


def in_turn(call):
    """Let each call end before the next one begins, as on NCCL's stream."""

    def waiting(*arguments, **options):
        works = call(*arguments, **options)
        for work in works if isinstance(works, list) else [works]:
            work.wait()
        return works

    return waiting


def mlp_step_on_a_gpu(schedule):
    """A step with tensors on the CPU that are said to be on another device, and the first calls of `dist`."""
    calls, batch = [], in_turn(dist.batch_isend_irecv)
    dist.all_reduce = lambda tensor, group: calls.append(tensor.device.type)
    dist.batch_isend_irecv = lambda operations: calls.append("batch") or batch(operations)
    runtime.device_of_messages = lambda *_: torch.device("meta")
    return mlp_step(schedule, stream=torch.empty_like(STREAM, device="cpu")), calls


@pytest.mark.parametrize("name", SCHEDULES)
def test_on_a_gpu_messages_go_in_batches_that_do_not_deadlock_one_after_the_other(name):
    schedule = SCHEDULES[name]
    results = Cluster(schedule.ranks).run(mlp_step_on_a_gpu, schedule).results
    assert_same([found for found, _ in results], schedule, alone(schedule))
    for _, calls in results:
        assert calls[:1] == ["meta"] * (schedule.ranks > 1), "all ranks of a group must take part in its first call"
        assert set(calls[1:]) <= {"batch"}


def one_call_after_the_other(schedule):
    dist.isend, dist.irecv = in_turn(dist.isend), in_turn(dist.irecv)
    mlp_step(schedule)


def test_messages_by_tag_would_deadlock_one_after_the_other():
    with pytest.raises(Deadlock):
        Cluster(2).run(one_call_after_the_other, one_f_one_b(2, 2))


@pytest.mark.parametrize("name", SCHEDULES)
def test_in_a_round_each_rank_does_what_it_has_had_the_input_for_since_an_earlier_one(name):
    schedule, there = SCHEDULES[name], set()
    found = rounds(schedule)
    assert [[acting[rank] for acting in found if acting[rank]] for rank in range(schedule.ranks)] == schedule.rows
    for acting in found:
        actions = [action for action in acting if action is not None]
        assert actions, "every round gets on"
        for action in actions:
            source = schedule.source(action)
            assert source is None or (action.kind == "F", source, action.microbatch) in there
        there |= {(action.kind == "F", action.stage, action.microbatch) for action in actions if action.kind != "W"}


def test_in_the_steady_state_of_1f1b_an_activation_and_a_gradient_cross():
    steps = ["".join("-" if a is None else a.kind for a in acting) for acting in rounds(one_f_one_b(2, 4))]
    assert " ".join(steps) == "F- FF -B BF FB BF FB BF -B B-"


def tied_step(schedule):
    batches, batch = [], in_turn(dist.batch_isend_irecv)

    def noted(operations):
        batches.append([each.op.__name__ for each in operations])
        return batch(operations)

    dist.batch_isend_irecv = noted
    return gpt_steps(schedule, 3, True, 1, tags=False), batches


def test_tied_weights_cross_in_one_batch():
    schedule = one_f_one_b(3, 2)
    (first, at_first), (_, between), (last, at_last) = Cluster(3).run(tied_step, schedule).results
    assert torch.equal(first["embedding.weight"], last["head.weight"])
    assert at_first[-1] == at_last[-1] == ["isend", "irecv"] and len(between[-1]) == 1


def devices(stages, activations, carried):
    dist.get_backend_config = lambda group=None: carried
    return device_of_messages(activations, stages, None)


MODULES = {"a layer": {0: nn.Linear(1, 1)}, "no parameters": {0: nn.Identity()}}


@pytest.mark.parametrize(
    ("stages", "stream", "carried", "device"),
    [
        ("no parameters", torch.empty(1), "cpu:gloo,cuda:nccl", "cpu"),
        ("a layer", STREAM, "cpu:gloo,cuda:nccl", "cpu"),
        ("no parameters", STREAM, "cpu:virtual", "cpu"),
        ("no parameters", STREAM, "cuda:nccl", "cuda"),
    ],
)
def test_messages_are_where_activations_or_stages_are_or_all_that_the_group_carries(stages, stream, carried, device):
    found = Cluster(1).run(devices, MODULES[stages], [stream], carried).results[0]
    assert found == torch.device(device)


def on_two_devices(stages):
    torch.cuda.is_available = lambda: True
    return devices(stages, [STREAM], "cpu:gloo,cuda:nccl")


def test_a_device_that_nothing_tells_is_asked_for():
    with pytest.raises(RankFailed, match="no parameters, .* expected `activations` on one of cpu, cuda"):
        Cluster(1).run(on_two_devices, MODULES["no parameters"])


# What cannot be


def one_rank(schedule=None, **changes):
    """A call that is right but for the `changes`, in this process."""
    schedule = schedule or interleaved(1, 2, chunks=2)
    inputs, targets = batches(2)
    arguments = {"stages": dict(enumerate(mlp(2))), "inputs": inputs, "targets": targets, "activations": STREAM}
    return run_schedule(schedule, **{**arguments, "loss": nn.functional.mse_loss, **changes})


def test_one_rank_needs_no_process_group():
    expected = alone(interleaved(1, 2, chunks=2))
    torch.testing.assert_close(one_rank().loss, expected[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inputs": batches(3)[0]}, "3 inputs: expected 2, one per microbatch"),
        ({"targets": []}, "0 targets: expected 2, one per microbatch"),
        ({"stages": {0: nn.Identity()}}, r"rank 0 was given stages \[0\]: its schedule has \[0, 1\] there"),
        ({"activations": [STREAM, STREAM]}, "2 activations for 2 stages: expected 1"),
        ({"activations": STREAM.long()}, "stage 0 hands on torch.int64: expected a floating dtype"),
        ({"activations": STREAM.float()}, r"stage 0 gave torch.float64 \(3, 6\).* announced torch.float32 \(3, 6\)"),
        ({"activations": STREAM[:2]}, r"stage 0 gave torch.float64 \(3, 6\).* announced torch.float64 \(2, 6\)"),
        ({"loss": lambda output, target: output - target}, r"a loss of shape \(3, 6\): expected one number"),
    ],
)
def test_what_does_not_fit_the_schedule_is_named(changes, said):
    with pytest.raises(ValueError, match=said):
        one_rank(**changes)


def test_a_stage_that_gives_no_tensor_is_named():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(ValueError, match=r"stage 0 gave tuple: .*announced torch.float64"):
        one_rank(stages={0: Pair(), 1: nn.Identity()})


def test_an_illegal_schedule_is_refused_before_anything_is_sent():
    with pytest.raises(IllegalSchedule, match="rank 0, position 1: forward of microbatch 1 on stage 0 is missing"):
        one_rank(written("0F0", (0,), 2))


def test_several_ranks_need_a_process_group_of_their_number():
    with pytest.raises(RuntimeError, match="needs a process group"):
        one_rank(one_f_one_b(2, 2))
    with pytest.raises(RankFailed, match="a schedule of 2 ranks in a group of 3: expected as many"):
        Cluster(3).run(mlp_step, one_f_one_b(2, 2))


def not_mine(schedule):
    group = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        mlp_step(schedule, group=group)


def test_ranks_outside_of_the_group_are_refused():
    with pytest.raises(RankFailed, match="rank 2 is not in this group"):
        Cluster(3).run(not_mine, one_f_one_b(2, 2))


def in_a_group_of_nccl(schedule):
    dist.get_backend_config = lambda group=None: "cuda:nccl"
    mlp_step(schedule)


def test_tensors_that_the_group_does_not_carry_are_refused_before_anything_is_sent():
    with pytest.raises(RankFailed, match="activations are on cpu, and this group carries tensors on cuda: move stages"):
        Cluster(2).run(in_a_group_of_nccl, one_f_one_b(2, 2))


# Real processes


def several(schedules):
    return [mlp_step(schedule, tags=tags) for schedule in schedules for tags in (True, False)]


def test_the_same_on_gloo():
    schedules = [one_f_one_b(2, 5), interleaved(2, 4), zb_h1(2, 3), zb_v(2, 4), drawn(7, 2, 2, 3)]
    results = run_on_processes("gloo", 2, several, schedules, seconds=60)
    for number, schedule in enumerate(schedules):
        for order in (0, 1):
            assert_same([found[2 * number + order] for found in results], schedule, alone(schedule))
