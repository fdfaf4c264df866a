"""Ranks die on the virtual cluster, and those that are left go on in the same processes."""

import functools

import pytest
import torch
import torch.distributed as dist
from elastic_training import Folder, Replicas, Shards, alone, batch, loss_of, values
from threeloops.training.cluster import Cluster, RankDies, RankFailed, RankLost, compute, now, uniform
from threeloops.training.elastic.recovery import Members, PeerMemory, train_through_losses

STEPS, SECONDS, TIMEOUT = 12, 0.25, 8.0


def trains(trainer, checkpoints, every=4):
    """What is left at the end: members, parameters, the loss, and which steps were taken when."""
    built, taken = [], []

    def build(members):
        built.append(trainer(members, SECONDS))
        built[-1].done = taken
        return built[-1]

    end, members = train_through_losses(build, STEPS, checkpoints(), every)
    return members.ranks, values(end.net), loss_of(end.net, batch(10_000)).item(), taken


def in_folder(folder):
    return lambda members: Folder(members, folder)


def in_memory():
    return PeerMemory().of


def run(deaths, trainer, checkpoints, ranks=4, every=4):
    cluster = Cluster(uniform(ranks, 2**-10, 2**20), deaths, timeout=TIMEOUT)
    return cluster.run(trains, trainer, checkpoints, every)


@pytest.mark.parametrize("trainer", [Replicas, Shards])
@pytest.mark.parametrize(
    ("deaths", "left"),
    [
        ([RankDies(2, 1.6)], (0, 1, 3)),
        ([RankDies(0, 1.6)], (1, 2, 3)),
        ([RankDies(3, 0.1)], (0, 1, 2)),
        ([RankDies(1, 1.6), RankDies(3, 10.5)], (0, 2)),
        ([RankDies(1, 1.6), RankDies(2, 1.7)], (0, 3)),
    ],
    ids=["one", "the first rank", "before any save", "one after the other", "a node of two"],
)
def test_training_goes_on_and_ends_as_if_nothing_had_happened(trainer, deaths, left, tmp_path):
    found = run(deaths, trainer, functools.partial(in_folder, str(tmp_path)))
    parameters, loss = alone(STEPS)
    assert found.died.keys() == {death.rank for death in deaths}
    for rank in left:
        ranks, ours, our_loss, _ = found.results[rank]
        assert ranks == left
        torch.testing.assert_close(ours, parameters, rtol=1e-11, atol=1e-13)
        assert our_loss == pytest.approx(loss, rel=1e-11)
        assert torch.equal(ours, found.results[left[0]][1]), "the same bits on all"


def test_steps_since_the_last_save_are_taken_again_and_no_others(tmp_path):
    """Rank 2 dies in step 6, and 4 steps are saved."""
    found = run([RankDies(2, 1.6)], Replicas, functools.partial(in_folder, str(tmp_path)))
    for rank in (0, 1, 3):
        steps = [number for number, _ in found.results[rank][3]]
        lost = steps.index(4, steps.index(4) + 1)
        assert steps[:lost] in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]) and steps[lost:] == list(range(4, STEPS))


def test_the_memory_of_a_peer_is_enough_for_the_shard_of_a_lost_rank():
    for deaths, left in (([RankDies(2, 1.6)], (0, 1, 3)), ([RankDies(0, 1.6), RankDies(2, 1.6)], (1, 3))):
        found = run(deaths, Shards, in_memory, every=1)
        for rank in left:
            assert found.results[rank][0] == left
            torch.testing.assert_close(found.results[rank][1], alone(STEPS)[0], rtol=1e-11, atol=1e-13)
            steps = [number for number, _ in found.results[rank][3]]
            assert len(steps) - STEPS in (0, 1), "a save after each step: at most one is taken again"


def test_the_loss_of_two_neighbours_is_more_than_the_memory_of_peers_can_bear():
    with pytest.raises(RankFailed, match=r"the part of rank 1 of step \d is lost.*storage"):
        run([RankDies(1, 1.6), RankDies(2, 1.6)], Shards, in_memory, every=1)


def dies_while_it_saves():
    """Rank 1 has not sent its part of the second save when it dies: its neighbours do not get through, others do."""
    memory, members = PeerMemory().of(Members()), Members()
    memory.save(1, torch.full((4,), float(dist.get_rank())))
    try:
        compute(1.0 if dist.get_rank() == 1 else 0.25)
        memory.save(2, torch.full((4,), 10.0 + dist.get_rank()))
    except RankLost as lost:
        step, parts = memory.of(members.without(*lost.ranks)).load()
        return step, torch.stack(parts)[:, 0].tolist()


def test_a_save_in_which_a_rank_dies_leaves_the_one_before():
    run = Cluster(uniform(5, 2**-10, 2**20), [RankDies(1, 0.75)], timeout=TIMEOUT).run(dies_while_it_saves)
    assert [run.results[rank] for rank in (0, 2, 3, 4)] == [(1, [0.0, 1.0, 2.0, 3.0, 4.0])] * 4


def loses_one_rank_in_each_save(deaths):
    """Those that are left try to save step 2 until nobody dies, and load after each loss."""
    members, memory, loaded = Members(), PeerMemory(), []
    memory.of(members).save(1, torch.tensor([float(dist.get_rank())]))
    for dying in [*deaths, None]:
        try:
            compute(1.0 if dist.get_rank() == dying else 0.25)
            memory.of(members).save(2, torch.tensor([10.0 + dist.get_rank()]))
        except RankLost as lost:
            members = members.without(*lost.ranks)
            step, parts = memory.of(members).load()
            loaded.append((step, torch.cat(parts).tolist()))
    return loaded, torch.cat(memory.load()[1]).tolist()


@pytest.mark.parametrize("deaths", [(9, 7), (3, 4), (4, 3)], ids=["far apart", "a neighbour later", "and earlier"])
def test_losses_in_one_save_after_the_other_leave_the_one_before(deaths):
    """Ranks far from the dead one get through their part of the save, and hold a generation that nobody can load."""
    starts = [0.5, 0.5 + TIMEOUT + 0.5]
    faults = [RankDies(rank, at) for rank, at in zip(deaths, starts, strict=True)]
    run = Cluster(uniform(10, 2**-10, 2**20), faults, timeout=TIMEOUT).run(loses_one_rank_in_each_save, deaths)
    assert set(run.died) == set(deaths)
    for rank in set(range(10)) - set(deaths):
        loaded, last = run.results[rank]
        assert loaded == [(1, [float(each) for each in range(10)])] * 2
        assert last == [10.0 + each for each in range(10) if each not in deaths]


def saves_to_peer():
    memory = PeerMemory().of(Members())
    assert memory.load() is None
    memory.save(3, torch.arange(10.0 + dist.get_rank()))
    memory.save(5, torch.arange(20.0 + dist.get_rank()))
    memory.save(6, torch.arange(30.0 + dist.get_rank()))
    step, parts = memory.load()
    return len(memory._generations), step, [len(part) for part in parts]


def test_peer_memory_gives_back_the_parts_of_all_ranks_in_order():
    for result in Cluster(3).run(saves_to_peer).results:
        assert result == (2, 6, [30, 31, 32]), "and no more than two generations are kept"
    assert Cluster(1).run(saves_to_peer).results[0] == (2, 6, [30])


def all_reduces(elements):
    """When this rank learns of the loss, and when the members that are left are together."""
    try:
        for _ in range(100):
            compute(SECONDS)
            dist.all_reduce(torch.ones(elements))
    except RankLost as lost:
        told = now()
        members = Members().without(*lost.ranks)
        return told, now(), members.place, members.size


@pytest.mark.parametrize("ranks", [3, 4, 6])
def test_when_survivors_know_and_when_they_are_together_is_exact(ranks):
    """Rank 1 dies while it computes. The others begin the all-reduce at the same time t. Rank 2 waits for its first
    chunk from t, and the one k places behind it for a chunk that would have come k hops later; each is told one timeout
    after it began to wait. The last to be told is rank 0, and its empty message goes around those that are left."""
    elements = 64 * ranks
    hop = 2**-10 + 64 * 4 / 2**20
    died = 2 * (SECONDS + 2 * (ranks - 1) * hop) + SECONDS / 2
    found = Cluster(uniform(ranks, 2**-10, 2**20), [RankDies(1, died)], timeout=TIMEOUT).run(all_reduces, elements)
    begin = 2 * (SECONDS + 2 * (ranks - 1) * hop) + SECONDS
    for place, rank in enumerate([*range(2, ranks), 0]):
        told, _, _, size = found.results[rank]
        assert told == begin + place * hop + TIMEOUT and size == ranks - 1
    together = begin + (ranks - 2) * hop + TIMEOUT + (ranks - 2) * 2**-10
    assert max(result[1] for result in found.results if result) == together
    assert [found.results[rank][2] for rank in (0, *range(2, ranks))] == list(range(ranks - 1))


def loses_two_in_turn():
    """Rank 3 learns of the second death later than of the first, in the middle of meeting the others."""
    try:
        compute(SECONDS)
        dist.all_reduce(torch.ones(64))
    except RankLost as lost:
        members = Members().without(*lost.ranks)
        x = torch.ones(1)
        dist.all_reduce(x, group=members.group)
        return lost.ranks, members.ranks, x.item()


def test_survivors_that_were_told_different_things_still_meet():
    """Rank 2 dies at 0.2 s: rank 3 is told at 8.25 s, and rank 0 one hop later. Rank 1 dies between the two."""
    hop = 2**-10 + 64 / 2**20
    deaths = [RankDies(2, 0.2), RankDies(1, 0.25 + TIMEOUT + hop / 2)]
    found = Cluster(uniform(4, 2**-10, 2**20), deaths, timeout=TIMEOUT).run(loses_two_in_turn)
    assert found.results[3] == ((2,), (0, 3), 2.0) and found.results[0] == ((1, 2), (0, 3), 2.0)


def test_saving_never_is_refused():
    with pytest.raises(ValueError, match="every = 0"):
        train_through_losses(Replicas, 1, in_memory(), every=0)
