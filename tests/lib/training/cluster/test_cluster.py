"""Programs on the virtual cluster: real processes, unmodified `torch.distributed` code, exact values and times."""

import linecache
import os
import sys
import threading
import time
import types

import psutil
import pytest
import torch
import torch.distributed as dist
from threeloops.training.cluster import (
    Cluster,
    ClusterError,
    CorruptMessage,
    Deadlock,
    Mismatch,
    RankDies,
    RankFailed,
    RankLost,
    SlowLink,
    SlowRank,
    Unfinished,
    charge,
    compute,
    fabric,
    now,
    synchronize,
    uniform,
)
from threeloops.training.cluster import cluster as cluster_module
from threeloops.training.cluster.processes import launcher as launcher_module
from torch.distributed.pipelining import PipelineStage, schedules

ALPHA, BETA = 1e-5, 1e9


def given(rank, *shape, dtype=torch.float32):
    """Small integers, so that sums are exact in every dtype."""
    numbers = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(rank))
    return numbers.to(dtype)


def every_collective(group_of=None):
    """What each collective gives, on all ranks or on those of `group_of` that this one is in."""
    ranks = list(group_of or range(dist.get_world_size()))
    group = dist.new_group(ranks) if group_of else None
    me, size = dist.get_rank(), len(ranks)
    if me not in ranks:
        return None
    found = {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8):
        x = given(me, 7, dtype=dtype).abs()
        dist.all_reduce(x, group=group)
        found["sum", dtype] = x
    for name in ("MAX", "MIN", "PRODUCT", "AVG"):
        x = given(me, 5)
        dist.all_reduce(x, getattr(dist.ReduceOp, name), group=group)
        found[name] = x
    for count in (0, 1, 2, 64):
        x = given(me, count)
        dist.all_reduce(x, group=group)
        found["count", count] = x
    whole = given(me, 4, 6)
    dist.all_reduce(whole[1:3], group=group)  # contiguous, and a part of a larger tensor
    found["part"] = whole
    x = given(me, 3, 5)
    dist.broadcast(x, src=ranks[-1], group=group)
    found["broadcast"] = x
    x = given(me, 3)
    dist.reduce(x, dst=ranks[1], group=group)
    found["reduce"] = x
    out = torch.empty(size * 3)
    dist.all_gather_into_tensor(out, given(me, 3), group=group)
    found["all_gather"] = out
    parts = [torch.empty(2, 2) for _ in range(size)]
    dist.all_gather(parts, given(me, 2, 2), group=group)
    found["all_gather of a list"] = torch.stack(parts)
    out = torch.empty(3)
    dist.reduce_scatter_tensor(out, given(me, size * 3), group=group)
    found["reduce_scatter"] = out
    parts = list(given(me, size * 2).split(2))
    out = torch.empty(2)
    dist.reduce_scatter(out, parts, group=group)
    found["reduce_scatter of a list"] = out
    out = torch.empty(size * 2, 3)
    dist.all_to_all_single(out, given(me, size * 2, 3), group=group)
    found["all_to_all"] = out
    mine = ranks.index(me)
    sends, gets = [mine + to for to in range(size)], [source + mine for source in range(size)]
    out = torch.empty(sum(gets))
    dist.all_to_all_single(out, given(me, sum(sends)), gets, sends, group=group)
    found["uneven all_to_all"] = out
    parts = [torch.empty(2) for _ in range(size)] if me == ranks[0] else None
    dist.gather(given(me, 2), parts, dst=ranks[0], group=group)
    found["gather"] = torch.stack(parts) if parts else None
    out = torch.empty(2)
    dist.scatter(out, list(given(me, size * 2).split(2)) if me == ranks[0] else None, src=ranks[0], group=group)
    found["scatter"] = out
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": me}, group=group)
    found["objects"] = objects
    handle = dist.all_reduce(x := given(me, 9), group=group, async_op=True)
    compute(1e-3)
    handle.wait()
    found["asynchronous"] = x
    dist.barrier(group=group)
    return found


@pytest.mark.parametrize("case", [(1, None), (2, None), (5, None), (8, None), (6, (1, 3, 4))], ids=str)
def test_every_collective_gives_what_torch_says_it_gives(case):
    size, group_of = case
    ranks = list(group_of or range(size))
    run = Cluster(size).run(every_collective, group_of) if len(ranks) > 1 else Cluster(1).run(alone)
    if len(ranks) == 1:
        assert run.results == (6.0,) and not run.messages
        return
    assert [found is not None for found in run.results] == [rank in ranks for rank in range(size)]
    n = len(ranks)
    for place, rank in enumerate(ranks):
        found = run.results[rank]
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8):
            assert found["sum", dtype].equal(sum(given(r, 7, dtype=dtype).abs() for r in ranks)), dtype
        stack = torch.stack([given(r, 5) for r in ranks])
        assert found["MAX"].equal(stack.amax(0)) and found["MIN"].equal(stack.amin(0))
        assert found["PRODUCT"].equal(stack.prod(0))
        torch.testing.assert_close(found["AVG"], stack.mean(0))
        for count in (0, 1, 2, 64):
            assert found["count", count].equal(sum(given(r, count) for r in ranks))
        assert found["part"][1:3].equal(sum(given(r, 4, 6)[1:3] for r in ranks))
        assert found["broadcast"].equal(given(ranks[-1], 3, 5))
        assert found["reduce"].equal(sum(given(r, 3) for r in ranks) if place == 1 else given(rank, 3))
        assert found["all_gather"].equal(torch.cat([given(r, 3) for r in ranks]))
        assert found["all_gather of a list"].equal(torch.stack([given(r, 2, 2) for r in ranks]))
        assert found["reduce_scatter"].equal(sum(given(r, n * 3) for r in ranks).split(3)[place])
        assert found["reduce_scatter of a list"].equal(sum(given(r, n * 2) for r in ranks).split(2)[place])
        assert found["all_to_all"].equal(torch.cat([given(r, n * 2, 3).split(2)[place] for r in ranks]))
        parts = [
            given(r, sum(source + to for to in range(n))).split([source + to for to in range(n)])[place]
            for source, r in enumerate(ranks)
        ]
        assert found["uneven all_to_all"].equal(torch.cat(parts))
        if place == 0:
            assert found["gather"].equal(torch.stack([given(r, 2) for r in ranks]))
        assert found["scatter"].equal(given(ranks[0], n * 2).split(2)[place])
        assert found["objects"] == [{"rank": r} for r in ranks]
        assert found["asynchronous"].equal(sum(given(r, 9) for r in ranks))


def alone():
    x = torch.full((3,), 2.0)
    for operation in (dist.all_reduce, lambda t: dist.broadcast(t, 0), lambda t: dist.all_gather([t.clone()], t)):
        operation(x)
    dist.barrier()
    return x.sum().item()


def timed_ring(count):
    x = torch.ones(count)
    dist.all_reduce(x)
    return now()


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
def test_an_all_reduce_takes_the_time_of_its_ring(ranks):
    count = 4 * ranks * 25
    run = Cluster(uniform(ranks, ALPHA, BETA)).run(timed_ring, count)
    chunk = 4 * count // ranks
    assert run.seconds == pytest.approx(2 * (ranks - 1) * (ALPHA + chunk / BETA), rel=1e-12)
    assert set(run.results) == {run.seconds}
    for rank in range(ranks):
        expected = [0] * ranks
        expected[(rank + 1) % ranks] = 2 * (ranks - 1) * chunk
        assert run.bytes[rank] == expected
    assert [s.what for s in run.spans] == ["all_reduce"] * ranks


def ring_by_hand():
    """Reduce-scatter from isend and irecv."""
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = list(given(rank, size * 10).split(10))
    for step in range(size - 1):
        into = torch.empty(10)
        handles = [
            dist.isend(chunks[(rank - step) % size], (rank + 1) % size),
            dist.irecv(into, (rank - 1) % size),
        ]
        for handle in handles:
            handle.wait()
        chunks[(rank - step - 1) % size] += into
    return chunks[(rank + 1) % size]


def test_point_to_point_moves_the_clock_of_the_program():
    run = Cluster(uniform(4, ALPHA, BETA)).run(ring_by_hand)
    total = sum(given(rank, 40) for rank in range(4)).split(10)
    assert all(run.results[rank].equal(total[(rank + 1) % 4]) for rank in range(4))
    assert run.seconds == pytest.approx(3 * (ALPHA + 40 / BETA), rel=1e-12) and not run.spans


def overlapping():
    x = torch.ones(1000)
    handle = dist.all_reduce(x, async_op=True)
    compute(3e-5, "backward")
    handle.wait()
    between = now()
    handles = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(2)]
    for handle in handles:
        handle.wait()
    return between, now()


def test_an_asynchronous_collective_overlaps_with_computation_and_queues_behind_another():
    one = 2 * (ALPHA + 2000 / BETA)
    run = Cluster(uniform(2, ALPHA, BETA)).run(overlapping)
    between, end = run.results[0]
    assert between == pytest.approx(max(one, 3e-5), rel=1e-12)
    assert end == pytest.approx(between + 2 * one, rel=1e-12)
    assert [(s.what, s.timeline) for s in run.spans if s.rank == 0] == [("backward", 0), *[("all_reduce", 1)] * 3]


def trained(steps, bucket_mb):
    """torch's own DDP over 8 layers of 256 KiB that charge 0.1 and 0.2 ms; ms of the last step, gradients."""

    class Layer(torch.nn.Linear):
        def forward(self, x):
            return charge(super().forward(x), 1e-4, 2e-4)

    torch.manual_seed(0)
    model = torch.nn.Sequential(*[Layer(256, 256, bias=False) for _ in range(8)])
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    x = given(dist.get_rank(), 8, 256) / 8
    times = []
    for _ in range(steps):
        model.zero_grad()
        synchronize()
        start = now()
        ddp(x).square().sum().backward()
        synchronize()
        times.append(1e3 * (now() - start))
    return times[-1], torch.cat([p.grad.flatten() for p in model.parameters()])


def test_torchs_own_ddp_runs_on_it_and_its_overlap_is_exact():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256, bias=False) for _ in range(8)])
    for rank in range(4):
        (model(given(rank, 8, 256) / 8).square().sum() / 4).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    for megabytes, milliseconds in ((100, 5.5957), (0.5, 4.5857)):
        run = Cluster(uniform(4, ALPHA, BETA)).run(trained, 3, megabytes)
        assert round(run.results[0][0], 4) == milliseconds
        for _, gradient in run.results:
            torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
            assert gradient.equal(run.results[0][1])


def sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False) for _ in range(4)])
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(given(dist.get_rank(), 8, 64) / 8).square().sum().backward()
    return torch.cat([p.grad.to_local().flatten() for p in model.parameters()])


def test_torchs_fsdp2_runs_on_it_and_sends_one_and_a_half_times_ddps_bytes():
    run = Cluster(4).run(sharded)
    parameters = 4 * 64 * 64 * 4
    once = sum(m.size for m in run.messages if m.size > 100 and m.source == 0)
    assert once == 3 * parameters * 3 // 4


def test_the_same_program_takes_the_same_time_to_the_bit_every_time():
    topology = fabric(2, 3)
    runs = [Cluster(topology).run(overlapping) for _ in range(5)]
    assert len({(run.clocks, run.messages.__repr__(), run.spans) for run in runs}) == 1


# What goes wrong


def waits_in_a_circle():
    dist.recv(torch.zeros(4), (dist.get_rank() + 1) % dist.get_world_size())


def raises():
    if dist.get_rank() == 2:
        raise ValueError("no gradient")
    dist.barrier()


def exits():
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()


def disagrees():
    dist.all_reduce(torch.ones(3 + dist.get_rank()))


def another_order():
    x, y = torch.ones(3), torch.ones(3, dtype=torch.float64)
    for tensor in (x, y) if dist.get_rank() else (y, x):
        dist.all_reduce(tensor)


def never_calls():
    if dist.get_rank():
        dist.all_reduce(torch.ones(3))


def calls_alone():
    if dist.get_rank() == 0:
        dist.broadcast(torch.ones(3), src=0)


def forgets_to_wait():
    dist.all_reduce(torch.ones(3), async_op=True)


def sends_and_forgets():
    x = torch.ones(3)
    if dist.get_rank() == 0:
        dist.isend(x, 1)
        dist.all_reduce(x)
    else:
        dist.all_reduce(x)
        dist.recv(x, 0)


def sends_into_nothing():
    if dist.get_rank() == 0:
        dist.isend(torch.ones(3), 1).wait()


def all_send_first():
    dist.send(torch.ones(3), 1 - dist.get_rank())
    dist.recv(torch.ones(3), 1 - dist.get_rank())


def fills_twice():
    x = torch.zeros(4)
    dist.irecv(x[:3], 1 - dist.get_rank()), dist.irecv(x[2:], 1 - dist.get_rank())


def divides_before_the_sum_is_there():
    x = torch.ones(2)
    work = dist.all_reduce(x, async_op=True)
    x /= 2
    work.wait()


def adds_before_its_message_has_left():
    total, got = torch.ones(3), torch.empty(3)
    sent = dist.isend(total, 1 - dist.get_rank())
    dist.recv(got, 1 - dist.get_rank())
    total += got
    sent.wait()


def sends_to_the_rank_before_the_first():
    dist.send(torch.ones(3), dist.get_rank() - 1)


def receives_from_the_rank_after_the_last():
    dist.recv(torch.ones(3), dist.get_rank() + 1)


def changes_other_parts_of_what_it_sends(other):
    """The halves of one tensor: one is sent, the other changes meanwhile."""
    both = torch.tensor([1.0, 2.0, 3.0, 4.0])
    sent = dist.isend(both[:2], other)
    dist.recv(both[2:], other)
    both[2:] *= 10
    sent.wait()
    return both.tolist()


def test_a_part_of_a_tensor_may_change_while_another_is_sent():
    results = Cluster(2).run(lambda: changes_other_parts_of_what_it_sends(1 - dist.get_rank())).results
    assert results == ([1.0, 2.0, 10.0, 20.0],) * 2


def opens_torchs_pipeline():
    """What torch 2.11's schedules do before their first step."""
    stage = PipelineStage(torch.nn.Linear(1, 1), dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    asked = stage._get_init_p2p_neighbors_ops()
    schedules._wait_batch_p2p(schedules._batch_p2p(asked))
    return len(asked), len({each.tensor.data_ptr() for each in asked})


def test_torch_may_receive_into_one_tensor_what_nobody_reads():
    results = Cluster(3).run(opens_torchs_pipeline).results
    assert results == ((2, 2), (4, 2), (2, 2)), "the rank in the middle sends one tensor twice and fills one twice"


def sends_what_is_not_there():
    x = torch.zeros(4)
    dist.irecv(x, 1 - dist.get_rank())
    dist.isend(x, 1 - dist.get_rank())


def own_groups_only():
    first = dist.get_rank() // 2 * 2
    group = dist.new_group([first, first + 1])
    out = torch.zeros(2)
    dist.reduce_scatter_tensor(out, torch.ones(4), group=group)


def another_size():
    if dist.get_rank() == 0:
        dist.send(torch.ones(3), 1)
    else:
        dist.recv(torch.ones(4), 0)


def returns_a_generator():
    return (x for x in range(3))


def hangs():
    while dist.get_rank() == 1:
        time.sleep(0.01)


def receives_from_anyone():
    dist.recv(torch.ones(3))


def reduces_bits():
    dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)


def sends_a_sparse_tensor():
    dist.all_reduce(torch.eye(3).to_sparse())


def leaves_a_thread():
    import threading

    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return os.getpid()


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        (waits_in_a_circle, Deadlock, r"rank 0 waits \(test_cluster.py:\d+\) for a message from rank 1\n"),
        (raises, RankFailed, r"(?s)rank 2 failed:.*test_cluster.py.*in raises.*ValueError: no gradient"),
        (exits, RankFailed, "rank 1: its process ended without a word, with exit status 3"),
        (disagrees, Mismatch, r"all_reduce of 3 float32, sum \(test_cluster.py:\d+\), rank 1 .* of 4 float32"),
        (another_order, Mismatch, "rank 0 calls all_reduce of 3 float64.* rank 1 calls all_reduce of 3 float32"),
        (
            calls_alone,
            Unfinished,
            r"rank 0 calls broadcast of 3 float32, root 0 \(test_cluster.py:\d+\), .*rank 1 did not call",
        ),
        (never_calls, Deadlock, r"rank 1 waits .*for all_reduce of 3 float32, sum, which rank 0 did not call"),
        (forgets_to_wait, Unfinished, r"rank 0 never waits for its all_reduce \(test_cluster.py:\d+\)"),
        (sends_and_forgets, Unfinished, r"rank 0 never waits for its isend \(test_cluster.py:\d+\): keep the handle"),
        (
            sends_into_nothing,
            Deadlock,
            r"rank 0 waits \(test_cluster.py:\d+\) for rank 1 to receive its message, which has",
        ),
        (all_send_first, Deadlock, r"rank 1 waits \(test_cluster.py:\d+\) for rank 0 to receive its message"),
        (
            fills_twice,
            RankFailed,
            "the tensor of this irecv from rank 1 shares memory with that of the irecv from rank 1",
        ),
        (
            adds_before_its_message_has_left,
            RankFailed,
            r"the tensor of this isend to rank \d changed before its wait\(\)",
        ),
        (
            divides_before_the_sum_is_there,
            RankFailed,
            r"the tensor of this all_reduce changed before its wait\(\)",
        ),
        (sends_to_the_rank_before_the_first, RankFailed, "send: rank -1 in a group of 2 ranks: expected 0 to 1"),
        (receives_from_the_rank_after_the_last, RankFailed, "recv: rank 2 in a group of 2 ranks: expected 0 to 1"),
        (sends_what_is_not_there, RankFailed, "this isend to rank 1 shares memory with that of the irecv from rank 1"),
        (
            own_groups_only,
            Mismatch,
            r"group '1' is ranks 0, 1 on rank 0 and ranks 2, 3 on rank 2 \(test_cluster.py:\d+\):",
        ),
        (another_size, Mismatch, "rank 0 sends 12 bytes .* rank 1 receives 16"),
        (returns_a_generator, RankFailed, "returned generator, which cannot be sent"),
        (receives_from_anyone, RankFailed, "no recv_anysource: name the rank to receive from"),
        (reduces_bits, RankFailed, "BAND of float32, which has no bitwise reductions"),
        (sends_a_sparse_tensor, RankFailed, "with layout sparse_coo: the virtual cluster sends dense tensors"),
    ],
)
def test_what_goes_wrong_is_named_and_never_hangs(program, error, message):
    with pytest.raises(error, match=message):
        Cluster({waits_in_a_circle: 3, raises: 3, own_groups_only: 4}.get(program, 2)).run(program, seconds=60)
    assert not ranks_left()


def ranks_left():
    """Processes that a run has left behind: children of the warm process, which is a child of this one."""
    return [
        child
        for warm in psutil.Process().children()
        if warm.status() != psutil.STATUS_ZOMBIE and "cluster.processes.warm" in " ".join(warm.cmdline())
        for child in warm.children()
    ]


def test_a_rank_that_hangs_is_ended_when_the_real_time_is_over():
    with pytest.raises(
        ClusterError, match=r"rank \d was at work when the 1 s of real time for this run were over, in hangs \("
    ):
        Cluster(2).run(hangs, seconds=1)
    assert not ranks_left()


def test_threads_and_processes_of_a_rank_end_with_the_run():
    run = Cluster(2).run(leaves_a_thread)
    assert not any(psutil.pid_exists(pid) for pid in run.results)


def says_hello(word):
    print(word, dist.get_rank())
    print("careful", file=sys.stderr)


def test_what_ranks_print_is_kept_with_their_number():
    printed = Cluster(2).run(says_hello, "hello").printed.splitlines()
    assert sorted(printed) == ["[rank 0] careful", "[rank 0] hello 0", "[rank 1] careful", "[rank 1] hello 1"]


def scatters_and_gathers():
    piece = torch.empty(2)
    dist.reduce_scatter_tensor(piece, torch.ones(2 * dist.get_world_size()))
    dist.all_gather_into_tensor(torch.empty(2 * dist.get_world_size()), piece)


def test_what_torch_says_of_its_own_names_is_not_printed_by_every_rank():
    assert Cluster(2).run(scatters_and_gathers).printed == ""


def buffers():
    """Whether Python holds back what is printed, and what ranks print must not depend on it."""
    print("hello")
    return bool(os.environ.get("PYTHONUNBUFFERED"))


def test_what_ranks_print_is_kept_however_python_buffers(monkeypatch):
    other = "" if os.environ.get("PYTHONUNBUFFERED") else "1"
    monkeypatch.setenv("PYTHONUNBUFFERED", other)
    started_anew = launcher_module._Launcher()
    for launcher in (launcher_module.launcher, started_anew):
        monkeypatch.setattr(cluster_module, "launcher", launcher)
        run = Cluster(2).run(buffers)
        assert run.printed.splitlines() == ["[rank 0] hello", "[rank 1] hello"]
        assert run.results == (bool(other) is (launcher is started_anew),) * 2
    started_anew.stop()


def test_functions_of_a_notebook_travel_with_what_they_use():
    notebook = types.ModuleType("__main__")
    source = """
import torch.distributed as dist
FACTOR = 3
def helper(x):
    return FACTOR * x
class Model:
    def __init__(self, rank):
        self.rank = rank
def program():
    return helper(dist.get_rank()), Model(1).rank
"""
    exec(source, notebook.__dict__)
    assert Cluster(2).run(notebook.program).results == ((0, 1), (3, 1))


def test_a_traceback_shows_the_lines_of_a_notebooks_cells():
    """The text of a cell exists only in the notebook's process, so it travels to the ranks."""
    text = "def inner(x):\n    return x.no_such_method()\n\n\ndef program():\n    inner(torch.ones(2))\n"
    name, namespace = "/tmp/ipykernel_1/2.py", {"torch": torch, "__name__": "__main__"}
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    exec(compile(text, name, "exec"), namespace)
    with pytest.raises(RankFailed) as raised:
        Cluster(1).run(namespace["program"])
    lines = [line for line in str(raised.value).splitlines() if set(line) - set(" ~^")]
    assert lines[1:3] == ["  in program, line 6: inner(torch.ones(2))", "  in inner, line 2: return x.no_such_method()"]
    assert lines[3].startswith("AttributeError")
    assert name not in str(raised.value), "the name of a cell's temporary file tells a reader nothing"


def test_a_line_of_a_notebook_is_named_by_its_function():
    notebook = types.ModuleType("__main__")
    source = "def receives():\n    x = torch.ones(3)\n    dist.recv(x, 1 - dist.get_rank())\n"
    notebook.__dict__.update(torch=torch, dist=dist)
    exec(compile(source, "/tmp/ipykernel_12/345.py", "exec"), notebook.__dict__)
    with pytest.raises(Deadlock, match=r"rank 0 waits \(receives, line 3\) for a message from rank 1\n"):
        Cluster(2).run(notebook.receives)


def test_what_a_backward_function_waits_for_says_that_it_was_in_backward():
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            dist.all_reduce(gradient := gradient.contiguous())  # the gradient of a sum has strides of 0
            return gradient

    def program():
        x = torch.ones(3, requires_grad=True)
        if dist.get_rank() == 0:
            Sum.apply(x).sum().backward()

    with pytest.raises(Deadlock, match=r"rank 0 waits \(test_cluster.py:\d+ in backward\) for all_reduce"):
        Cluster(2).run(program)


def test_a_program_that_cannot_be_sent_to_the_ranks_is_refused_by_name():
    lock = threading.Lock()

    def program():
        return lock

    with pytest.raises(TypeError, match="program and what it uses go to the ranks by cloudpickle.*'_thread.lock'"):
        Cluster(2).run(program)


@pytest.mark.parametrize("ranks", [0, -1, 200])
def test_a_number_of_ranks_that_cannot_be_is_refused(ranks):
    with pytest.raises(ValueError, match=f"ranks = {ranks}: expected 1 to 128"):
        Cluster(ranks)


# Faults


def steps(count):
    for _ in range(count):
        compute(1.0, "step")
        dist.all_reduce(torch.ones(1000))
    return now()


def test_a_slow_rank_sets_the_pace_of_all():
    run = Cluster(4, [SlowRank(2, 1.3, at=2.0)]).run(steps, 4)
    reduce = 2 * 3 * (ALPHA + 1000 / BETA)
    assert 2 * 1.0 + 2 * 1.3 < run.seconds < 2 * 1.0 + 2 * 1.3 + 4 * reduce
    assert sum(s.end - s.start for s in run.spans if s.rank == 1 and s.timeline == 0) == 4.0


def test_a_slow_link_slows_every_message_that_passes_it():
    run = Cluster(uniform(2, ALPHA, BETA), [SlowLink("0→1", 0.5)]).run(timed_ring, 1000)
    # What comes over the slow link and goes back over the other one, or the other way around.
    assert run.seconds == pytest.approx(2 * ALPHA + 2000 / (BETA / 2) + 2000 / BETA, rel=1e-12)
    late = Cluster(uniform(2, ALPHA, BETA), [SlowLink("0→1", 0.5, at=1.0)]).run(timed_ring, 1000)
    assert late.seconds == pytest.approx(2 * (ALPHA + 2000 / BETA), rel=1e-12)


def sends_twice():
    into = torch.empty(2, 4)
    for row in into:
        if dist.get_rank() == 0:
            dist.send(torch.full((4,), 1.5), 1)
        else:
            dist.recv(row, 0)
    return into


def test_the_memory_of_each_rank_is_measured_where_somebody_asks():
    def program(megabytes):
        for _ in range(3):  # given back each time
            kept = torch.ones(megabytes[dist.get_rank()] << 18)
            dist.all_reduce(torch.ones(1))
            del kept

    argument = (20, 4, 0)
    run = Cluster(3, [RankDies(2, 1e9)]).run(program, argument, memory=True)
    for taken, megabytes in zip(run.memory, argument, strict=True):
        assert abs(taken - (megabytes << 20)) < 2 << 20
    assert Cluster(3).run(program, argument).memory == ()


def test_a_corrupt_message_has_one_bit_flipped():
    run = Cluster(2, [CorruptMessage(0, 1, number=1)]).run(sends_twice)
    good, bad = run.results[1]
    assert good.tolist() == [1.5] * 4 and bad[:3].tolist() == [1.5] * 3
    assert bad[3].view(torch.int32) ^ torch.tensor(1.5).view(torch.int32) == 1 << 30
    reduced = Cluster(2, [CorruptMessage(0, 1)]).run(lambda: dist.all_reduce(x := torch.ones(4)) or x)
    assert not reduced.results[0].equal(torch.full((4,), 2.0))


def survives():
    try:
        steps(100)
    except RankLost as error:
        lost = str(error)
    rest = [rank for rank in range(dist.get_world_size()) if rank != 2]
    group = dist.new_group(rest)
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    return lost, now(), x.sum().item()


def test_ranks_that_wait_for_a_dead_one_learn_of_it_after_the_timeout_and_can_go_on():
    run = Cluster(4, [RankDies(2, at=4.2)], timeout=30.0).run(survives)
    assert run.died == {2: 4.2} and run.clocks[2] == 4.2 and run.results[2] is None
    for rank in (0, 1, 3):
        lost, at, total = run.results[rank]
        assert "rank 2 died at 4.2 s" in lost and total == 9.0
        assert 35.0 < at < 96.0
    assert not [m for m in run.messages if m.source == 2 and m.left > 4.2]
    assert max(s.end for s in run.spans if s.rank == 2) == 4.2


def takes_over_from_the_others():
    compute(0.1)
    try:
        dist.all_reduce(torch.zeros(6, dtype=torch.float64))
    except RankLost:
        began = now()
    state, rank = torch.zeros(6, dtype=torch.float64), dist.get_rank()
    if rank == 0:
        dist.recv(state, 1)
        dist.recv(state, 2)
    else:
        dist.send(state, 0)
    return began, now()


def test_who_is_told_of_a_death_at_another_time_than_the_others_may_send():
    """A timeout that is over happens before everything later, also where the run has other things to do."""
    run = Cluster(uniform(4, 1 / 64, 1e9), [RankDies(3, 0.01)], timeout=8).run(takes_over_from_the_others)
    began, ended = zip(*run.results[:3], strict=True)
    assert began == pytest.approx([8.1, 8.1 + 1 / 64, 8.1 + 2 / 64], abs=1e-6)
    assert ended[0] == pytest.approx(began[2] + 1 / 64, abs=1e-6)


def survives_with_collectives_in_flight():
    """All-reduces of two steps are under way when rank 1 dies; nobody waits for the second."""
    lost, x, y = None, torch.ones(4), torch.ones(4)
    try:
        for _ in range(100):
            compute(0.25)
            first = dist.all_reduce(x, async_op=True)
            compute(0.0625 * dist.get_rank())
            dist.all_reduce(y, async_op=True)
            first.wait()
            dist.all_reduce(torch.ones(1))
    except RankLost as error:
        lost = error.ranks
    began = now()
    group = dist.new_group([0, 2, 3], use_local_synchronization=True)
    dist.all_reduce(z := torch.ones(3), group=group)
    return lost, began, now(), z.sum().item()


@pytest.mark.parametrize("at", [1.1, 1.3, 1.35, 1.4])
def test_a_group_that_lost_a_rank_is_broken_and_holds_nobody_up_a_second_time(at):
    """As NCCL's communicators: what was submitted to it fails at once, so survivors wait one timeout and go on."""
    run = Cluster(uniform(4, 2**-10, 2**20), [RankDies(1, at)], timeout=8.0).run(survives_with_collectives_in_flight)
    for rank in (0, 2, 3):
        lost, began, ended, total = run.results[rank]
        assert lost == (1,) and total == 9.0
        assert at + 7.6 < began < ended < at + 8.7
    assert max(run.results[rank][2] for rank in (0, 2, 3)) < max(run.results[rank][1] for rank in (0, 2, 3)) + 0.01


def goes_on_with_whoever_is_left():
    """100 steps of 0.25 s; what a rank was told of losses, and when."""
    told, ranks, group, done = [], [0, 1, 2, 3], None, 0
    while done < 100:
        try:
            compute(0.25)
            dist.all_reduce(torch.ones(64), group=group)
            done += 1
        except RankLost as error:
            told.append((error.ranks, now()))
            ranks = [rank for rank in ranks if rank not in error.ranks]
            group = dist.new_group(ranks, use_local_synchronization=True)
    return told


def leaves_in_the_middle():
    """Rank 2 sends to rank 0, and does not wait for that when it learns that rank 1 is dead."""
    rank = dist.get_rank()
    if rank == 0:
        dist.recv(x := torch.empty(3), 2)
        return x.tolist()
    if rank == 2:
        dist.isend(torch.ones(3), 0)
        try:
            dist.recv(torch.empty(1), 1)
        except RankLost as error:
            return error.ranks
    compute(100)
    return None


def test_who_is_told_of_a_death_may_leave_what_it_has_begun():
    run = Cluster(3, [RankDies(1, 0.5)], timeout=8.0).run(leaves_in_the_middle)
    assert run.results == ([1.0] * 3, None, (1,))


def test_a_rank_lives_until_its_own_death_whatever_happened_before():
    """The first death stops all ranks at 4.25 s; the second one, at 30 s, is not brought forward by that."""
    run = Cluster(uniform(4, 2**-10, 2**20), [RankDies(2, 4.125), RankDies(1, 30.0)], timeout=8.0).run(
        goes_on_with_whoever_is_left
    )
    assert run.died == {1: 30.0, 2: 4.125} and run.clocks[1] == 30.0
    for rank in (0, 3):
        (first, at), (both, later) = run.results[rank]
        assert first == (2,) and 12 < at < 13
        assert both == (1, 2) and 38 < later < 39
    both = Cluster(uniform(4, 2**-10, 2**20), [RankDies(2, 4.125), RankDies(1, 5.0)], timeout=8.0)
    assert [told[0][0] for told in both.run(goes_on_with_whoever_is_left).results if told] == [(1, 2)] * 2


def test_a_rank_that_fails_because_another_died_says_so():
    with pytest.raises(RankFailed, match=r"(?s)RankLost.*rank 1 died at 0.5 s"):
        Cluster(2, [RankDies(1, at=0.5)], timeout=1.0).run(steps, 2)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (RankDies(4, 1.0), "rank = 4, expected 0 to 3"),
        (RankDies(0, -1.0), "a time of 0 s or later"),
        (SlowRank(0, 0.0), "a factor above 0"),
        (SlowLink("9→1", 0.5), "no port '9→1'; it has"),
        (CorruptMessage(0, 4), "target = 4"),
    ],
)
def test_a_fault_that_cannot_happen_is_refused(fault, message):
    with pytest.raises(ValueError, match=message):
        Cluster(4, [fault])
