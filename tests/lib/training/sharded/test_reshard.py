"""States of some ranks, cut anew for others: in plain tensors, and in training that goes on."""

import pytest
import torch
import torch.distributed as dist
from elastic_training import Shards, alone, values
from threeloops.training.cluster import Cluster
from threeloops.training.elastic.recovery import Members
from threeloops.training.sharded import reshard


def trains(first, steps, states):
    trainer = Shards(Members())
    if states:
        trainer.load(states)
    for number in range(first, first + steps):
        trainer.step(number)
    return trainer.state(), values(trainer.net)


def states_of(run):
    return [result[0] for result in run.results]


@pytest.mark.parametrize(("before", "after"), [(4, 3), (3, 4), (1, 6), (6, 1), (2, 2)])
def test_training_goes_on_with_another_number_of_ranks(before, after):
    """Sizes that no number of ranks divides: buckets of 42, 24 and 4 elements, so that some shards have none."""
    first = Cluster(before).run(trains, 0, 4, None)
    second = Cluster(after).run(trains, 4, 5, states_of(first))
    for _, found in second.results:
        torch.testing.assert_close(found, alone(9)[0], rtol=1e-11, atol=1e-13)


def test_there_and_back_gives_the_same_bits():
    states = states_of(Cluster(4).run(trains, 0, 3, None))
    three = [reshard(states, rank, 3) for rank in range(3)]
    for rank, before in enumerate(states):
        after = reshard(three, rank, 4)
        assert after.keys() == before.keys() and (after["rank"], after["ranks"]) == (rank, 4)
        for a, b in zip(before["shards"], after["shards"], strict=True):
            assert a["parameters"] == b["parameters"] and torch.equal(a["values"], b["values"])
        for bucket, moments in before["optimizer"]["state"].items():
            for name, value in moments.items():
                assert torch.equal(value, after["optimizer"]["state"][bucket][name]), name
        assert after["optimizer"]["param_groups"] == before["optimizer"]["param_groups"]


def test_shards_are_copies():
    states = states_of(Cluster(2).run(trains, 0, 1, None))
    reshard(states, 0, 1)["shards"][0]["values"].zero_()
    assert states[0]["shards"][0]["values"].abs().sum() > 0


def test_states_that_are_not_those_of_one_program_are_refused():
    states = states_of(Cluster(3).run(trains, 0, 1, None))
    for wrong in ([], states[:2], states[::-1], [states[0]] * 3):
        with pytest.raises(ValueError, match="one of every rank"):
            reshard(wrong, 0, 2)
    with pytest.raises(ValueError, match="rank = 2 of 2"):
        reshard(states, 2, 2)
    assert not dist.is_initialized()
