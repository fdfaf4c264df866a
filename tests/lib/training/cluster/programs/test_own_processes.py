"""A program that starts a process for each of its ranks runs on a rank in one of them."""

import multiprocessing

import pytest
import torch
import torch.distributed as dist
from threeloops.training.cluster import Cluster, RankFailed, compute, now


def sums(rank, results):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:1", rank=rank, world_size=3)
    x = torch.tensor([float(rank + 1)])
    compute(1.0)
    dist.all_reduce(x)
    results.put((rank, x.item(), now()))
    dist.destroy_process_group()


def starts_its_ranks(method, rounds=1, target=sums):
    context = multiprocessing.get_context(method)
    results = context.Queue()
    for _ in range(rounds):
        processes = [context.Process(target=target, args=(rank, results)) for rank in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    return [results.get() for _ in range(rounds)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_each_rank_runs_the_process_that_asks_for_its_number(method):
    run = Cluster(3).run(starts_its_ranks, method, seconds=60)
    assert [(rank, total) for ((rank, total, _),) in run.results] == [(0, 6.0), (1, 6.0), (2, 6.0)]
    assert all(1 < clock < 1.001 for ((_, _, clock),) in run.results)


def goes_on_itself():
    (first, second) = starts_its_ranks("spawn", 2)
    x = torch.ones(1)
    dist.all_reduce(x)
    return first, second, x.item(), now()


def test_the_rank_goes_on_in_the_next_process_and_in_the_first_from_where_one_has_ended():
    run = Cluster(3).run(goes_on_itself, seconds=60)
    again = Cluster(3).run(goes_on_itself, seconds=60)
    assert (run.results, run.messages) == (again.results, again.messages)
    for rank, (first, second, total, clock) in enumerate(run.results):
        assert first[:2] == second[:2] == (rank, 6.0)
        assert total == 3.0
        assert 1 < first[2] < 2 < second[2] < clock < 2.001


def fails_on_one(rank, results):
    dist.init_process_group(rank=rank, world_size=3)
    if rank == 1:
        raise ValueError("no data")
    dist.barrier()


def asks_for_more(rank, results):
    dist.init_process_group(rank=rank, world_size=8)


def uses_the_group_it_inherits(rank, results):
    dist.barrier()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (fails_on_one, r"rank 1 failed:\n.*(?s:.*)test_own_processes.py(?s:.*)ValueError: no data"),
        (asks_for_more, r"world_size=8\) \(test_own_processes.py:\d+\): this process is rank \d of 3"),
        (
            uses_the_group_it_inherits,
            r"a second process of this rank, 'ForkProcess-\d', .*\(test_own_processes.py:\d+\)",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_process_that_fails_or_is_in_no_world_fails_its_rank(target, message):
    with pytest.raises(RankFailed, match=message):
        Cluster(3).run(starts_its_ranks, "fork", 1, target, seconds=60)
