"""Replica groups on the virtual cluster: weights equal those of one process that uses the examples of who was there."""

import pytest
import torch
import torch.distributed as dist
from threeloops.training.cluster import Cluster, RankDies, RankFailed, compute, uniform
from threeloops.training.elastic.recovery import ReplicaGroups

SIZE, ELEMENTS, STEPS, RATE = 3, 6, 9, 0.05
LINKS = uniform(4 * SIZE, 1 / 1024, 1e9)


def gradient(weights, rank, number):
    generator = torch.Generator().manual_seed(100 * rank + number)
    inputs = torch.randn(5, ELEMENTS, generator=generator, dtype=torch.float64)
    return inputs.T @ (inputs @ weights - inputs.sum(1)) / 5


def train(present, joins=None, steps=STEPS):
    replicas = ReplicaGroups(SIZE, present)
    part, number, taken = torch.zeros(ELEMENTS // SIZE, dtype=torch.float64), 0, []
    if replicas.number not in present:
        if joins is None:
            return None
        state = torch.empty(len(part) + 1, dtype=torch.float64)
        replicas.join(joins[0], state)
        part, number = state[:-1].clone(), int(state[-1])
    while number < steps:
        if joins is not None and number == joins[1] and joins[0] not in replicas.present:
            replicas.join(joins[0], torch.cat([part, torch.tensor([float(number)])]))
        compute(0.5)
        whole = torch.empty(ELEMENTS, dtype=torch.float64)
        dist.all_gather_into_tensor(whole, part, group=replicas.group)
        mine = torch.empty_like(part)
        dist.reduce_scatter_tensor(mine, gradient(whole, dist.get_rank(), number), group=replicas.group)
        mine /= SIZE
        if replicas.average(mine):
            part -= RATE * mine
            taken.append(replicas.present)
            number += 1
    return part, taken


def alone(groups_of_steps):
    """Weights of one process that uses, in each step, the examples of the groups that were there."""
    weights = torch.zeros(ELEMENTS, dtype=torch.float64)
    for number, groups in enumerate(groups_of_steps):
        ranks = [group * SIZE + place for group in groups for place in range(SIZE)]
        weights = weights - RATE * sum(gradient(weights, rank, number) for rank in ranks) / len(ranks)
    return weights


def of_group(run, group):
    return torch.cat([run.results[group * SIZE + place][0] for place in range(SIZE)])


@pytest.mark.parametrize("gone", [(), (0,), (2,), (1, 3), (0, 1, 2)])
def test_the_groups_that_are_left_use_their_own_examples_from_the_lost_step_on(gone):
    """A step takes 0.5 s and some messages, so all deaths at 1.7 s are in step 3. No finished step is repeated."""
    deaths = [RankDies(group * SIZE + place, 1.7) for group in gone for place in range(SIZE)]
    run = Cluster(LINKS, deaths, timeout=1.0).run(train, (0, 1, 2, 3))
    left = tuple(group for group in range(4) if group not in gone)
    expected = [(0, 1, 2, 3)] * 3 + [left] * (STEPS - 3)
    for group in left:
        assert run.results[group * SIZE][1] == expected
        torch.testing.assert_close(of_group(run, group), alone(expected), rtol=1e-12, atol=1e-14)


def test_a_loss_costs_the_step_in_flight_and_the_timeout():
    calm = Cluster(LINKS, timeout=1.0).run(train, (0, 1, 2, 3))
    deaths = [RankDies(2 * SIZE + place, 1.7) for place in range(SIZE)]
    hurt = Cluster(LINKS, deaths, timeout=1.0).run(train, (0, 1, 2, 3))
    assert hurt.seconds - calm.seconds == pytest.approx(0.5 + 1.0, abs=0.05)


def test_two_groups_are_lost_in_different_steps():
    deaths = [RankDies(group * SIZE + place, at) for group, at in ((3, 0.7), (0, 5.0)) for place in range(SIZE)]
    run = Cluster(LINKS, deaths, timeout=1.0).run(train, (0, 1, 2, 3))
    taken = run.results[SIZE][1]
    assert list(dict.fromkeys(taken)) == [(0, 1, 2, 3), (0, 1, 2), (1, 2)]
    assert len(taken) == STEPS
    torch.testing.assert_close(of_group(run, 2), alone(taken), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("new", [0, 2, 3])
def test_a_new_group_gets_the_state_of_the_first_and_goes_on_with_it(new):
    present = tuple(group for group in range(4) if group != new)
    run = Cluster(LINKS).run(train, present, (new, 4))
    taken = [present] * 4 + [(0, 1, 2, 3)] * (STEPS - 4)
    assert run.results[present[0] * SIZE][1] == taken
    assert run.results[new * SIZE][1] == taken[4:]
    for group in range(4):
        torch.testing.assert_close(of_group(run, group), alone(taken), rtol=1e-12, atol=1e-14)


def test_a_state_travels_once_for_each_rank_of_the_new_group():
    """On a ring of four groups, a rank of the first sends nothing else to that of the last."""
    run = Cluster(LINKS).run(train, (0, 1, 2), (3, 4))
    for place in range(SIZE):
        assert run.bytes[place][3 * SIZE + place] == 8 * (ELEMENTS // SIZE + 1)
        assert all(run.bytes[giver][3 * SIZE + place] == 0 for giver in range(SIZE) if giver != place)


def test_ranks_that_make_no_equal_groups_are_refused():
    with pytest.raises(RankFailed, match="size = 5 with 12 ranks: expected groups of equal size"):
        Cluster(LINKS).run(ReplicaGroups, 5, (0, 1))
