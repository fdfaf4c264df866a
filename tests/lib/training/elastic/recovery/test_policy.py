"""All members take a step, or none does, and each knows why."""

import pytest
import torch
import torch.distributed as dist
from elastic_training import Replicas, Shards, alone, batch, values
from threeloops.training.cluster import Cluster, RankDies, RankLost, uniform
from threeloops.training.elastic.recovery import GuardedOptimizer, Members, Verdict, vote

RANKS, STEPS = 3, 8


def spoil_gradient(trainer, rank, step, value):
    """Change one element of a gradient on one rank, before the all-reduce, in one step."""
    weight, taken = next(trainer.net.parameters()), []

    def hook(gradient):
        taken.append(None)
        if dist.get_rank() == rank and len(taken) == step + 1:
            gradient = gradient.clone()
            gradient[2, 3] = value
        return gradient

    weight.register_hook(hook)


def trains_with_a_bad_gradient(kind):
    trainer = kind(Members())
    spoil_gradient(trainer, 1, 4, float("nan"))
    for number in range(STEPS):
        trainer.step(number)
    return values(trainer.net), trainer.optimizer.skipped, trainer.optimizer.steps


@pytest.mark.parametrize("kind", [Replicas, Shards])
def test_a_gradient_that_is_not_finite_costs_one_batch(kind):
    """With replicas the all-reduce brings it to all; with shards only the one sees it that holds the element."""
    run = Cluster(RANKS).run(trains_with_a_bad_gradient, kind)
    expected, _ = alone(STEPS, skip=(4,))
    for parameters, skipped, steps in run.results:
        torch.testing.assert_close(parameters, expected, rtol=1e-11, atol=1e-13)
        assert [step for step, _ in skipped] == [4] and steps == STEPS
        assert skipped == run.results[0][1], "all know the same"
    seen = run.results[0][1][0][1].not_finite
    assert len(seen) == (RANKS if kind is Replicas else 1)


def trains_with_flipped_bits():
    """Bits of rank 2's averaged gradient are flipped after the all-reduce of step 3, and nothing else happens."""
    trainer = Replicas(Members())
    for number in range(STEPS):
        trainer.optimizer.zero_grad()
        trainer.ddp(batch(number)[trainer.members.place :: RANKS]).square().mean().backward()
        if number == 3 and dist.get_rank() == 2:
            next(trainer.net.parameters()).grad.view(torch.int64)[2, 1] ^= 1
        trainer.optimizer.step()
    return values(trainer.net), trainer.optimizer.skipped


def test_a_flipped_bit_in_a_replicas_gradient_is_caught_and_its_rank_named():
    run = Cluster(RANKS).run(trains_with_flipped_bits)
    for parameters, skipped in run.results:
        assert skipped == [(3, Verdict(odd=(2,)))] and not skipped[0][1].commit
        assert torch.equal(parameters, run.results[0][0]), "no replica went its own way"


def votes(kinds):
    """A vote on gradients that each rank makes up."""
    rank = dist.get_rank()
    gradients = [torch.ones(3), torch.arange(5.0)]
    if kinds[rank] == "odd":
        gradients[1][2] += 1
    if kinds[rank] == "infinite":
        gradients[0][1] = float("inf")
    return vote(Members(), gradients, replicated=True), vote(Members(), gradients, replicated=False)


@pytest.mark.parametrize(
    ("kinds", "replicated", "sharded"),
    [
        (["", "", ""], Verdict(), Verdict()),
        (["", "odd", ""], Verdict(odd=(1,)), Verdict()),
        (["", "odd"], Verdict(odd=(0, 1)), Verdict()),
        (["odd", "odd", ""], Verdict(odd=(2,)), Verdict()),
        (["", "", "infinite"], Verdict((2,), (2,)), Verdict((2,))),
        (["odd", "infinite", "", ""], Verdict((1,), (0, 1, 2, 3)), Verdict((1,))),
    ],
)
def test_votes(kinds, replicated, sharded):
    """Without a majority nobody can tell who is right."""
    run = Cluster(uniform(len(kinds), 2**-10, 2**20)).run(votes, kinds)
    assert run.results == ((replicated, sharded),) * len(kinds)
    sent = {message.size for message in run.messages}
    assert sent == {16} and len(run.messages) == 2 * len(kinds) * (len(kinds) - 1)


def steps_with_a_loss():
    trainer, taken = Replicas(Members(), 0.25), []
    try:
        for number in range(20):
            trainer.step(number)
            taken.append(number)
    except RankLost as lost:
        return lost.ranks, taken
    return None


def test_a_lost_member_shows_at_the_latest_in_the_quorum_of_the_next_step():
    run = Cluster(uniform(RANKS, 2**-10, 2**20), [RankDies(1, 1.4)], timeout=8.0).run(steps_with_a_loss)
    for rank in (0, 2):
        assert run.results[rank][0] == (1,) and run.results[rank][1] == list(range(5))


def at_different_steps():
    trainer = Replicas(Members())
    trainer.optimizer.steps = 3 * (dist.get_rank() == 1)
    try:
        trainer.step(0)
    except RuntimeError as error:
        trainer.optimizer.steps = 3
        trainer.step(3)
        return str(error), trainer.optimizer.steps
    return None


def test_members_at_different_steps_are_refused_until_they_are_told_the_same():
    for said, steps in Cluster(2).run(at_different_steps).results:
        assert "rank 0: 0, rank 1: 3" in said and "set `steps` to its step" in said and steps == 4


def test_a_step_needs_a_quorum():
    optimizer = GuardedOptimizer(None, Members((0,)), list)
    with pytest.raises(RuntimeError, match="zero_grad"):
        optimizer.step()
