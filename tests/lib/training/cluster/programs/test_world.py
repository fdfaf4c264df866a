"""Scripts that start and end `torch.distributed` themselves stay in the world that they were started in."""

import os
import threading

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from threeloops.training.cluster import Cluster, ClusterError, RankFailed, fabric, run_on_processes
from torch import nn

RUNS = {"virtual": lambda ranks, program: list(Cluster(ranks).run(program, seconds=60).results)}
RUNS["gloo"] = lambda ranks, program: run_on_processes("gloo", ranks, program, seconds=60)


def total():
    x = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(x)
    return x.item()


def begins_and_ends_its_group():
    dist.init_process_group("gloo")
    assert dist.get_backend() == "gloo"
    sums = total()
    dist.destroy_process_group()
    return sums, dist.is_initialized()


def names_rank_and_address():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:1", rank=rank, world_size=size)
    return total()


def asks_first():
    if not dist.is_initialized():
        dist.init_process_group()
    return total()


def uses_the_group_that_it_finds_and_ends_it():
    sums = total()
    dist.destroy_process_group()
    return sums


def begins_three_times():
    sums = []
    for count in range(3):
        dist.init_process_group("gloo")
        pair = [count % 3, (count + 1) % 3]
        group = dist.new_group(pair)  # has the same name in every world
        if dist.get_rank() in pair:
            dist.barrier(group)
        sums.append(total())
        dist.destroy_process_group()
    return sums


def has_a_group_of_a_named_backend():
    group = dist.new_group(backend="gloo")
    x = torch.ones(2)
    dist.all_reduce(x, group=group)
    return x.tolist(), dist.get_backend(group)


def spawns_its_ranks():
    gathered = []
    mp.spawn(in_spawned_rank, args=(3, gathered), nprocs=3)
    return gathered


def in_spawned_rank(rank, size, gathered):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    dist.init_process_group("gloo", rank=rank, world_size=size)
    gathered.append(total())
    dist.destroy_process_group()


@pytest.mark.parametrize("where", RUNS)
@pytest.mark.parametrize(
    ("program", "result"),
    [
        (begins_and_ends_its_group, (6.0, False)),
        (names_rank_and_address, 6.0),
        (asks_first, 6.0),
        (uses_the_group_that_it_finds_and_ends_it, 6.0),
        (begins_three_times, [6.0, 6.0, 6.0]),
        (has_a_group_of_a_named_backend, ([3.0, 3.0], "gloo")),
        (spawns_its_ranks, [6.0]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_script_makes_its_own_groups(where, program, result):
    assert RUNS[where](3, program) == [result] * 3


def begins_twice():
    for _ in range(2):
        dist.init_process_group("gloo")


def goes_on_after_the_end():
    dist.destroy_process_group()
    total()


def asks_for_more_ranks():
    dist.init_process_group("gloo", rank=dist.get_rank(), world_size=8)


def asks_for_another_rank():
    dist.init_process_group("gloo", rank=0, world_size=2)


def asks_for_more_ranks_again():
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:1", rank=dist.get_rank(), world_size=8)


def spawns_more_ranks():
    mp.spawn(in_spawned_rank, args=(8, []), nprocs=8)


def begins_in_a_process_of_its_own():
    child = os.fork()
    if child == 0:
        try:
            dist.init_process_group("gloo")
        except RuntimeError as error:
            os._exit("that rank" in str(error))
        os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("where", RUNS)
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (begins_twice, "trying to initialize the default process group twice"),
        (goes_on_after_the_end, "Default process group has not been initialized"),
        (asks_for_more_ranks, r"world_size=8\) \(test_world.py:\d+\): this process is rank \d of 2. Run .* on 8 ranks"),
        (asks_for_another_rank, r"init_process_group\(rank=0, world_size=2\).*: this process is rank 1 of 2"),
        (spawns_more_ranks, r"spawn\(nprocs=8\) \(test_world.py:\d+\) on 2 ranks"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_world_that_is_not_there_is_refused_by_name(where, program, message):
    with pytest.raises(RankFailed, match=message):
        RUNS[where](2, program)


def test_processes_that_a_rank_starts_are_outside():
    assert RUNS["gloo"](1, begins_in_a_process_of_its_own) == [1]
    with pytest.raises(RankFailed, match=r"a second process of this rank, .*calls init_process_group .*test_world.py:"):
        RUNS["virtual"](1, begins_in_a_process_of_its_own)


def names_an_unknown_backend():
    dist.new_group(backend="ucc")


def waits_for_a_key():
    store = dist.distributed_c10d._get_default_store()
    store.set(f"key {dist.get_rank()}", "mine")
    assert store.get(f"key {dist.get_rank()}") == b"mine"
    store.wait([f"key {1 - dist.get_rank()}"])


def counts():
    dist.distributed_c10d._get_default_store().add("arrived", 1)


def begins_rpc():
    from torch.distributed import rpc

    rpc.init_rpc(f"worker {dist.get_rank()}", rank=dist.get_rank(), world_size=2)


def from_a_second_thread():
    thread = threading.Thread(target=total, name="logger")
    thread.start()
    thread.join()


def from_two_threads():
    thread = threading.Thread(target=total, name="logger")
    thread.start()
    total()
    thread.join()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (names_an_unknown_backend, r"backend = .*ucc.*\(test_world.py:\d+\): expected one of gloo, nccl"),
        (waits_for_a_key, r"store.wait\('key \d'\) \(test_world.py:\d+\): .* call dist.broadcast_object_list"),
        (counts, r"store.add\('arrived'\) \(test_world.py:\d+\)"),
        (
            begins_rpc,
            r"torch.distributed.rpc \(test_world.py:\d+\): .* communicate with the calls of torch.distributed",
        ),
        (from_a_second_thread, r"a second thread of this rank, 'logger', .*\(test_world.py:\d+\)"),
        (from_two_threads, r"a second thread of this rank, 'logger', .*\(test_world.py:\d+\)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_virtual_cluster_refuses_by_name_what_it_cannot_order(program, message):
    with pytest.raises(RankFailed, match=message):
        Cluster(2).run(program, seconds=60)


def spins():
    while dist.get_rank() == 1:
        pass


def sleeps():
    if dist.get_rank() == 1:
        threading.Event().wait()


@pytest.mark.parametrize("program", [spins, sleeps])
def test_a_program_that_hangs_is_named_with_its_line(program):
    said = rf"rank 1 was at work when the [25] s .*were over, in {program.__name__} \(test_world.py:\d+\): does it hang"
    with pytest.raises(ClusterError, match=said):
        Cluster(2).run(program, seconds=2)
    with pytest.raises(RankFailed, match=said):
        run_on_processes("gloo", 2, program, seconds=5)


def order_of_parameters():
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(8)])
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[parameter] for parameter in set(model.parameters())]


def order_of_names():
    return list({"embed", "attention", "mlp", "norm", "head"})


def test_ranks_order_sets_as_separate_machines_do():
    """A program that reduces the gradients of `set(model.parameters())` must not pass here and fail there."""
    orders = Cluster(4).run(order_of_parameters).results
    assert len(set(map(tuple, orders))) == 4
    assert len(set(map(tuple, Cluster(4).run(order_of_names).results))) == 1, "forks share their hash seed"


def test_fresh_ranks_have_hash_seeds_of_their_own():
    cluster = Cluster(3, fresh=True)
    orders = cluster.run(order_of_names).results
    assert len(set(map(tuple, orders))) > 1
    assert cluster.run(order_of_names).results == orders, "and every run is the same"
    with pytest.raises(RankFailed, match=r"rank \d of 3\. Run the program on 8 ranks"):
        cluster.run(asks_for_more_ranks)


def place():
    return [int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]


def test_a_rank_knows_its_node_as_torchrun_says_it():
    assert list(Cluster(fabric(2, 2)).run(place).results) == [
        [0, 0, 0, 4, 2],
        [1, 1, 0, 4, 2],
        [2, 0, 1, 4, 2],
        [3, 1, 1, 4, 2],
    ]
    assert run_on_processes("gloo", 2, place) == [[0, 0, 0, 2, 2], [1, 1, 0, 2, 2]]
