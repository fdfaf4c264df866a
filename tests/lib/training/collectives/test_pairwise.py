"""All-reduces in one and in two shots: values against float64, and bytes, messages and seconds behind one switch."""

import pytest
import torch
import torch.distributed as dist
from threeloops.hardware import accelerator
from threeloops.training.cluster import Cluster, advance_to, now, one_node, run_on_processes
from threeloops.training.collectives import (
    Link,
    TorchPeers,
    one_shot_all_reduce,
    one_shot_all_reduce_cost,
    ring_all_reduce_cost,
    two_shot_all_reduce,
    two_shot_all_reduce_cost,
)

SHOTS = {
    "one": (one_shot_all_reduce, one_shot_all_reduce_cost),
    "two": (two_shot_all_reduce, two_shot_all_reduce_cost),
}
PORT = Link(3.4e-6, accelerator("H100 SXM").link_bandwidth)
OPERATIONS = ("sum", "avg", "product", "max", "min")
SLOT = 1.0


def given(rank, elements, dtype=torch.float32):
    return torch.randn(elements, generator=torch.Generator().manual_seed(1000 * rank + elements)).to(dtype)


def everything(cases):
    """The result of each case, and how long it took; all ranks begin a case together."""
    done = []
    for slot, (shots, operation, elements, dtype) in enumerate(cases):
        tensor = given(dist.get_rank(), elements, dtype)
        advance_to(slot * SLOT)
        SHOTS[shots][0](TorchPeers(), tensor, operation)
        done.append((tensor, now() - slot * SLOT))
    return done


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_behind_a_switch_they_are_their_closed_form(ranks):
    cases = [
        *[(shots, "sum", elements, torch.float32) for shots in SHOTS for elements in (0, 1, ranks, 60 * ranks, 4097)],
        *[(shots, operation, 37, torch.float64) for shots in SHOTS for operation in OPERATIONS],
        *[(shots, "sum", 37, torch.bfloat16) for shots in SHOTS],
    ]
    run = Cluster(one_node("H100 SXM", ranks, PORT.latency)).run(everything, cases)
    for slot, (shots, operation, elements, dtype) in enumerate(cases):
        values, seconds = zip(*(result[slot] for result in run.results), strict=True)
        every = torch.stack([given(rank, elements, dtype).double() for rank in range(ranks)])
        right = {
            "sum": every.sum(0),
            "avg": every.mean(0),
            "product": every.prod(0),
            "max": every.amax(0),
            "min": every.amin(0),
        }
        tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(values[0].double(), right[operation], rtol=tolerance, atol=tolerance)
        assert all(torch.equal(value, values[0]) for value in values), (shots, operation, elements)
        expected = SHOTS[shots][1](elements, dtype.itemsize, ranks, PORT)
        messages = [m for m in run.messages if slot * SLOT <= m.ready < (slot + 1) * SLOT]
        sent = [[m.size for m in messages if m.source == rank] for rank in range(ranks)]
        assert (tuple(map(sum, sent)), tuple(map(len, sent))) == (expected.bytes, expected.messages), (shots, elements)
        if shots == "one" or elements % ranks == 0:
            assert max(seconds) == pytest.approx(expected.seconds, rel=1e-7, abs=1e-15), (shots, elements)
        else:
            assert max(seconds) <= expected.seconds * (1 + 1e-7)


def reduced_as_a_view():
    whole = given(dist.get_rank(), 24).view(4, 6)
    two_shot_all_reduce(TorchPeers(), whole[:, 1::2])
    return whole


def test_a_tensor_with_holes_keeps_what_is_between():
    right = sum(given(rank, 24).view(4, 6) for rank in range(3))
    for rank, whole in enumerate(Cluster(3).run(reduced_as_a_view).results):
        torch.testing.assert_close(whole[:, 1::2], right[:, 1::2])
        assert torch.equal(whole[:, ::2], given(rank, 24).view(4, 6)[:, ::2])


def on_gloo():
    tensor = given(dist.get_rank(), 1001)
    one_shot_all_reduce(TorchPeers(), tensor)
    again = given(dist.get_rank(), 1001)
    two_shot_all_reduce(TorchPeers(), again)
    dist.all_reduce(expected := given(dist.get_rank(), 1001))
    torch.testing.assert_close(tensor, expected)
    torch.testing.assert_close(again, expected)
    return True


def test_on_real_processes_they_agree_with_all_reduce():
    assert all(run_on_processes("gloo", 3, on_gloo))


def test_two_shots_have_the_bytes_of_a_ring_and_two_latencies():
    ring = ring_all_reduce_cost(8000, 4, 8, PORT)
    two = two_shot_all_reduce_cost(8000, 4, 8, PORT)
    assert two.bytes == ring.bytes
    assert ring.seconds - two.seconds == pytest.approx(12 * PORT.latency)


def test_one_shot_wins_below_the_size_where_both_take_as_long():
    """α + (N − 1)s/β = 2α + 2(N − 1)/N·s/β, so s = αβN / ((N − 1)(N − 2)): 291 kB for eight H100."""
    for ranks in (4, 8):
        equal = PORT.latency * PORT.bandwidth * ranks / ((ranks - 1) * (ranks - 2))
        for factor, winner in ((0.9, "one"), (1.1, "two")):
            elements = int(equal * factor / 4) // ranks * ranks
            seconds = {shots: cost(elements, 4, ranks, PORT).seconds for shots, (_, cost) in SHOTS.items()}
            assert min(seconds, key=seconds.get) == winner
    assert equal == pytest.approx(291_400, rel=1e-3)
