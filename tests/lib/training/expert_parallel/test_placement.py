"""Copies of busy experts: how many, where, and that a layer with copies gives what it gives without."""

import itertools
import math
import random

import pytest
import torch
import torch.distributed as dist
from threeloops.training.cluster import Cluster, compute, now
from threeloops.training.expert_parallel import (
    CopyRouter,
    ExpertParallel,
    Placement,
    Router,
    count_copies,
    gather_load,
    own_experts,
    place_copies,
)
from torch import nn

WIDTH, EXPERTS, RANKS = 5, 6, 4
LOADS = (50, 3, 10, 3, 30, 4)
PLACED = place_copies(LOADS, RANKS, 3)


# Plans


def test_copies_are_those_with_the_lowest_maximum():
    """Against all ways to fill the slots."""
    chance = random.Random(0)
    for _ in range(80):
        loads = [chance.choice((0, 1, 5, chance.randint(0, 100))) for _ in range(chance.randint(1, 4))]
        slots = len(loads) + chance.randint(0, 5)
        copies = count_copies(loads, slots)
        assert sum(copies) == slots
        assert min(copies) >= 1
        ways = (way for way in itertools.product(range(1, slots + 1), repeat=len(loads)) if sum(way) == slots)
        assert highest(loads, copies) == min(highest(loads, way) for way in ways)


def highest(loads, copies):
    return max(load / count for load, count in zip(loads, copies, strict=True))


def test_a_placement_fills_all_slots_and_repeats_an_expert_on_a_rank_only_if_it_must():
    chance = random.Random(1)
    for _ in range(150):
        ranks, slots = chance.randint(1, 6), chance.randint(1, 4)
        loads = [chance.expovariate(0.1) for _ in range(chance.randint(1, ranks * slots))]
        placement = place_copies(loads, ranks, slots)
        assert sorted(placement.slots) == sorted(
            expert for expert, count in enumerate(count_copies(loads, ranks * slots)) for _ in range(count)
        )
        assert {len(rank) for rank in placement.experts} == {slots}
        assert sum(placement.rank_loads(loads)) == pytest.approx(sum(loads))
        if max(count_copies(loads, ranks * slots)) <= ranks and len(loads) >= ranks * slots - 1:
            assert all(len(set(rank)) == slots for rank in placement.experts)


def test_a_placement_by_hand():
    """Two busy experts and two idle ones in six slots: 60/3 = 20, 30/2 = 15 and 15/1."""
    assert count_copies([60, 30, 15], 6) == (3, 2, 1)
    placement = place_copies([60, 30, 15], 3, 2)
    assert placement.experts == ((0, 1), (0, 1), (0, 2))
    assert placement.rank_loads([60, 30, 15]) == (35, 35, 35)
    assert placement.imbalance([60, 30, 15]) == 1.0
    assert placement.imbalance([90, 0, 0]) == 1.0
    assert placement.imbalance([0, 0, 60]) == 3.0
    assert placement.imbalance([0, 0, 0]) == 1.0


def test_ties_go_to_the_lower_expert():
    assert count_copies([5, 5, 5], 5) == (2, 2, 1)
    assert count_copies([0, 0], 3) == (2, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: count_copies([1, 2, 3], 2), r"3 experts with loads \[1, 2, 3\] in 2 slots"),
        (lambda: count_copies([1, -2], 2), "finite loads ≥ 0"),
        (lambda: count_copies([1, math.nan], 2), "finite loads ≥ 0"),
        (lambda: count_copies([], 2), "at least one expert"),
        (lambda: place_copies([1], 0, 1), "0 ranks with 1 slots each"),
        (lambda: Placement(((0, 1), (2,))), "equally many slots on every rank"),
        (lambda: Placement(((0, 2), (2, 0))), "each expert from 0 to the last at least once"),
        (lambda: CopyRouter(Router(WIDTH, 3, 1), PLACED), "a placement of 6 experts for a router of 3"),
    ],
)
def test_what_cannot_be_placed_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# The layer


def make_router(k):
    router = Router(WIDTH, EXPERTS, k).double()
    router.weight.data.copy_(torch.randn(EXPERTS, WIDTH, generator=torch.Generator().manual_seed(3)))
    router.weight.data[:, 0] = torch.tensor(LOADS) / 20
    return router


class Charged(nn.Linear):
    def forward(self, rows):
        compute(1e-3 * len(rows))
        return super().forward(rows)


def make_expert(number):
    torch.manual_seed(number)
    return Charged(WIDTH, WIDTH).double()


def tokens_of(rank):
    x = torch.randn(40 + rank, WIDTH, generator=torch.Generator().manual_seed(50 + rank)).double()
    x[:, 0] = 1
    return x


@torch.no_grad()
def with_copies(k):
    rank = dist.get_rank()
    router = CopyRouter(make_router(k), PLACED, first=rank)
    layer = ExpertParallel(router, [make_expert(e) for e in PLACED.experts[rank]], capacity_factor=math.inf)
    y = layer(tokens_of(rank))
    return y, now(), gather_load(layer.load).chosen


@torch.no_grad()
def without_copies(k, ranks):
    experts = [make_expert(e) for e in own_experts(EXPERTS)]
    layer = ExpertParallel(make_router(k), experts, capacity_factor=math.inf)
    results = [layer(tokens_of(rank)) for rank in range(ranks)] if dist.get_world_size() == 1 else []
    if not results:
        layer(tokens_of(dist.get_rank()))
    return results, now(), layer.load.chosen


@pytest.mark.parametrize("k", [1, 2])
def test_a_layer_with_copies_gives_what_one_process_gives(k):
    expected = Cluster(1).run(without_copies, k, RANKS).results[0][0]
    run = Cluster(RANKS).run(with_copies, k)
    for (mine, _, _), right in zip(run.results, expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-12)


def test_copies_take_turns():
    """Each rank's tokens are split to within one, so all ranks' to within the number of ranks."""
    chosen = Cluster(RANKS).run(with_copies, 2).results[0][2]
    assert sum(chosen) == 2 * sum(len(tokens_of(rank)) for rank in range(RANKS))
    for expert in range(EXPERTS):
        shares = [count for count, owner in zip(chosen, PLACED.slots, strict=True) if owner == expert]
        assert max(shares) - min(shares) <= RANKS, (expert, shares)


def test_no_token_is_well():
    router = CopyRouter(make_router(2), PLACED)
    assert router(torch.zeros(0, WIDTH).double()).experts.shape == (0, 2)


def test_the_layer_takes_as_long_as_its_busiest_rank():
    """6 experts on 3 ranks, and with 3 further copies: the charge of 1 ms per row shows the busiest rank."""
    before = Cluster(3).run(without_copies, 1, 3)
    counts = [sum(of) for of in zip(*(chosen for _, _, chosen in before.results), strict=True)]
    plan = place_copies(counts, 3, 3)
    after = Cluster(3).run(planned, plan)
    busiest = {"before": max(counts[0] + counts[1], counts[2] + counts[3], counts[4] + counts[5])}
    slots = after.results[0][1]
    busiest["after"] = max(sum(slots[3 * rank : 3 * rank + 3]) for rank in range(3))
    assert busiest["after"] < busiest["before"]
    assert abs(busiest["after"] - max(plan.rank_loads(counts))) <= 6
    for run, name in ((before, "before"), (after, "after")):
        assert run.seconds == pytest.approx(1e-3 * busiest[name], rel=0.02)


@torch.no_grad()
def planned(plan):
    rank = dist.get_rank()
    own = [make_expert(e) for e in plan.experts[rank]]
    layer = ExpertParallel(CopyRouter(make_router(1), plan, first=rank), own, capacity_factor=math.inf)
    layer(tokens_of(rank))
    took = now()
    return took, gather_load(layer.load).chosen
