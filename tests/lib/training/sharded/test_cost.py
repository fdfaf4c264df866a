"""Closed forms of memory and communication: against the paper, and byte for byte against the virtual cluster."""

from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
from charged import between
from sharded_training import batch, layer_mb, layers, loss_of
from threeloops.training.cluster import Cluster, advance_to
from threeloops.training.data_parallel import DDP
from threeloops.training.mesh import Mesh
from threeloops.training.sharded import FSDP, ZeroOptimizer, bytes_sent, model_states

BILLION = 10**9


@pytest.mark.parametrize(
    ("stage", "gigabytes"),
    [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)],
)
def test_a_model_of_7_5_billion_on_64_ranks_needs_what_figure_1_of_the_paper_says(stage, gigabytes):
    states = model_states([15 * BILLION // 2], 64, stage)
    assert round(states.total / 1e9, 1) == gigabytes


@pytest.mark.parametrize(
    ("stage", "per_parameter"),
    [(0, lambda n: 16), (1, lambda n: 4 + 12 / n), (2, lambda n: 2 + 14 / n), (3, lambda n: 16 / n)],
)
@pytest.mark.parametrize("ranks", [1, 4, 1024])
def test_bytes_per_parameter_with_and_without_masters(stage, per_parameter, ranks):
    sizes = [1024 * 3, 1024 * 5]
    assert model_states(sizes, ranks, stage).total == per_parameter(Fraction(ranks)) * 1024 * 8
    without = model_states(sizes, ranks, stage, master_bytes=0)
    assert model_states(sizes, ranks, stage).masters == model_states(sizes, ranks, stage).total - without.total
    assert without.masters == 0 and without.parameters == model_states(sizes, ranks, stage).parameters


def test_chunks_are_padded_per_flat_tensor():
    assert model_states([10, 3], 4, 3, parameter_bytes=4, gradient_bytes=4, master_bytes=0).total == (3 + 1) * 16
    two = model_states([10, 3], 4, 2, parameter_bytes=1, gradient_bytes=1, master_bytes=1, optimizer_bytes=1)
    assert (two.parameters, two.gradients, two.masters, two.optimizer) == (16, 4, 4, 4)
    one = model_states([10, 3], 4, 1, parameter_bytes=1, gradient_bytes=1, master_bytes=1, optimizer_bytes=1)
    assert (one.parameters, one.gradients, one.masters, one.optimizer) == (16, 16, 4, 4)


def test_stage_3_sends_one_and_a_half_times_what_the_others_send():
    for ranks in (2, 3, 4, 8, 64):
        sent = [set(bytes_sent([64 * 3 * 1000], ranks, stage)) for stage in range(4)]
        ddp = 2 * (ranks - 1) * 64 * 3 * 1000 * 2 // ranks
        assert sent == [{ddp}] * 3 + [{ddp * 3 // 2}]
    assert bytes_sent([10], 1, 3) == [0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([4], 0, 1), "on 0 ranks"), (([4], 2, 4), "stage = 4"), (([-4], 2, 1), r"sizes \[-4\]"),
        (([4], 2, 1, [4]), "in stage 1: expected 1 or more, in stage 3 alone"), (([4], 2, 3, [], 0), "replicas = 0"),
    ],
)  # fmt: skip
def test_what_has_no_cost_is_named(arguments, said):
    sizes, ranks, stage, *more = arguments
    options = dict(zip(("gathered_once", "replicas"), more, strict=False))
    with pytest.raises(ValueError, match=said):
        bytes_sent(sizes, ranks, stage, **options)


WIDTH, LAYERS = 6, 3
"""Layers of 42 elements: 3 ranks and 2 divide them, 4 and 8 do not."""


def steps(dtype):
    """One step of each kind, each in a second of its own, and a second step of each in the second after it."""
    at = 0
    rank, mb = dist.get_rank(), layer_mb(WIDTH, dtype)

    def twice(wrapped, optimizer):
        nonlocal at
        for _ in range(2):
            at += 1
            advance_to(at)
            optimizer.zero_grad()
            loss_of(wrapped(batch(rank, 0, WIDTH, dtype))).backward()
            optimizer.step()
        advance_to(at + 0.5)

    ddp = DDP(layers(WIDTH, LAYERS, dtype), bucket_cap_mb=mb, first_bucket_mb=mb)
    twice(ddp, torch.optim.SGD(ddp.parameters(), 0.1))
    for stage in (1, 2):
        model = layers(WIDTH, LAYERS, dtype)
        twice(model, ZeroOptimizer(model, torch.optim.Adam, stage=stage, bucket_cap_mb=mb, first_bucket_mb=mb))
    for options in ({}, {"units_in_flight": 1}, {"reshard_after_forward": False}, {"units": 2}):
        model = layers(WIDTH, LAYERS, dtype)
        units = model[: options.pop("units", LAYERS)]  # the last layer is the root
        fsdp = FSDP(model, units, **options)
        twice(fsdp, torch.optim.Adam(fsdp.parameters()))
    if dist.get_world_size() == 8:
        model = layers(WIDTH, LAYERS, dtype)
        fsdp = FSDP(model, model, mesh=Mesh(replicate=2, shard=4))
        twice(fsdp, torch.optim.Adam(fsdp.parameters()))


@pytest.mark.parametrize(
    ("ranks", "dtype"),
    [(2, torch.float32), (3, torch.float32), (4, torch.float32), (8, torch.float32), (4, torch.bfloat16)],
    ids=str,
)
def test_bytes_on_the_virtual_cluster_are_the_closed_form(ranks, dtype):
    run = Cluster(ranks).run(steps, dtype)
    sizes, size = [WIDTH**2 + WIDTH] * LAYERS, {"parameter_bytes": dtype.itemsize, "gradient_bytes": dtype.itemsize}
    expected = [bytes_sent(sizes, ranks, stage, **size) for stage in (0, 1, 2, 3, 3)]
    expected.append(bytes_sent([], ranks, 3, gathered_once=sizes, **size))
    expected.append(bytes_sent(sizes[:2], ranks, 3, gathered_once=sizes[2:], **size))
    if ranks == 8:
        expected.append(bytes_sent(sizes, 4, 3, replicas=2, **size))
    for number, each in enumerate(expected):
        for second in (1, 2):
            start = 2 * number + second
            sent = [0] * ranks
            for message in between(run, start, start + 0.5):
                sent[message.source] += message.size
            assert sent == each, (number, second)
    if 42 % ranks == 0:
        assert expected[0] == [2 * (ranks - 1) * 42 // ranks * LAYERS * dtype.itemsize] * ranks
