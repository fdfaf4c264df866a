"""Many ranks, on the virtual cluster and on gloo: every byte is written once, all publish or none, and what few saved
many can load."""

import errno
import shutil
import threading

import pytest
import torch
import torch.distributed as dist
from threeloops.training.checkpoint import (
    Checkpointer,
    CheckpointError,
    LocalStore,
    Sharded,
    flat_range,
    sharded_along,
)
from threeloops.training.checkpoint.manifest import decode
from threeloops.training.checkpoint.pieces import held
from threeloops.training.cluster import Cluster, RankFailed, run_on_processes
from threeloops.training.mesh import Mesh

WHOLE = {
    "columns": torch.randn(12, 5, generator=torch.Generator().manual_seed(1)),
    "rows": torch.randn(7, 24, generator=torch.Generator().manual_seed(2)).bfloat16(),
    "flat": torch.randn(5, 3, 7, generator=torch.Generator().manual_seed(3)),
    "replica": torch.arange(9),
    "expert": torch.randn(4, generator=torch.Generator().manual_seed(4)),
    "few": torch.randn(2, generator=torch.Generator().manual_seed(5)),
}


def layout(rank, ranks, whole=WHOLE):
    """This rank's part of every tensor: two cut along a dimension, two as uneven ranges, where the last ranks may have
    nothing, one on all ranks and one on the last alone."""

    def piece(name):
        values = whole[name].flatten()
        length = -(-len(values) // ranks)
        return flat_range(tuple(whole[name].shape), rank * length, values[rank * length :][:length].clone())

    state = {
        "columns": sharded_along(0, whole["columns"].chunk(ranks, 0)[rank].clone(), rank, ranks),
        "rows": sharded_along(1, whole["rows"].chunk(ranks, 1)[rank].clone(), rank, ranks),
        "flat": piece("flat"),
        "few": piece("few"),
        "replica": whole["replica"].clone(),
        "rank": rank,
        "same": "on all",
    }
    return {**state, "expert": whole["expert"].clone()} if rank == ranks - 1 else state


def tensors(state):
    return list(held({name: each for name, each in state.items() if isinstance(each, torch.Tensor | Sharded)}).values())


def save(folder, steps=(1,), asynchronous=False, **options):
    state = layout(dist.get_rank(), dist.get_world_size())
    checkpointer = Checkpointer(LocalStore(folder), **options)
    for step in steps:
        if asynchronous:
            checkpointer.save_async(step, state)
            for each in tensors(state):
                each += 1
        else:
            checkpointer.save(step, state)
    checkpointer.wait()


def reshard(before, after):
    """Load what others saved, and save it again as it now lies. Whether this rank has its part of the values, bit for
    bit, and which plain values."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    into = layout(rank, ranks, {name: torch.zeros_like(each) for name, each in WHOLE.items()})
    loaded = Checkpointer(LocalStore(before)).load(into)
    Checkpointer(LocalStore(after)).save(1, {**into, "rank": rank, "same": loaded.state["same"]})
    same = all(map(torch.equal, tensors(into), tensors(layout(rank, ranks))))
    return same, loaded.state["rank"], loaded.state["same"]


def test_four_to_two_to_three_to_one_is_bit_identical(tmp_path):
    Cluster(4).run(save, tmp_path / "4")
    for before, ranks in ((4, 2), (2, 3), (3, 1), (1, 6)):
        run = Cluster(ranks).run(reshard, tmp_path / str(before), tmp_path / str(ranks))
        assert run.results == tuple((True, rank if rank < before else 0, "on all") for rank in range(ranks))


def test_every_byte_is_written_once_and_replicas_share_the_work(tmp_path):
    Cluster(4).run(save, tmp_path)
    manifest = decode((tmp_path / "step-00000001/manifest.json").read_bytes())
    assert manifest.world == 4
    data = sum(file.size - file.header for file in manifest.files)
    assert data == sum(each.nbytes for each in WHOLE.values())
    assert manifest.values == ({"rank": 0, "same": "on all"}, {"rank": 1}, {"rank": 2}, {"rank": 3})
    assert not list(tmp_path.glob("**/note-*"))


def plain_values_of_each(folder):
    rank = dist.get_rank()
    values = [{"flag": True, "number": 0.0, "only": "of rank 0"}, {"flag": 1, "number": -0.0}, {"flag": True}][rank]
    checkpointer = Checkpointer(LocalStore(folder))
    checkpointer.save(1, {"w": torch.ones(2), **values})
    found = checkpointer.load().state
    del found["w"]
    return repr(sorted(found.items())) == repr(sorted(values.items()))


def test_each_rank_gets_the_plain_values_that_it_saved_and_no_others(tmp_path):
    assert Cluster(3).run(plain_values_of_each, tmp_path).results == (True,) * 3


def test_one_process_loads_what_many_saved(tmp_path):
    Cluster(3).run(save, tmp_path)
    loaded = Checkpointer(LocalStore(tmp_path)).load()
    for name, each in WHOLE.items():
        assert torch.equal(loaded.state[name], each), name


def test_an_asynchronous_save_of_many_ranks_holds_what_was_there_when_it_was_called(tmp_path):
    Cluster(3).run(save, tmp_path, (1, 2, 3), True)
    for step in (2, 3):
        loaded = Checkpointer(LocalStore(tmp_path)).load(step=step)
        for name, each in WHOLE.items():
            expected = each
            for _ in range(step - 1):
                expected = expected + 1
            assert torch.equal(loaded.state[name], expected), (step, name)


def test_the_same_on_gloo(tmp_path):
    def program(folder):
        save(folder, (1, 2), True)
        (folder / "latest").unlink(missing_ok=True)
        dist.barrier()
        checkpointer = Checkpointer(LocalStore(folder))
        into = layout(dist.get_rank(), 2, {name: torch.zeros_like(each) for name, each in WHOLE.items()})
        checkpointer.load(into, step=1)
        return checkpointer.load(into, step=1).step, all(
            map(torch.equal, tensors(into), tensors(layout(dist.get_rank(), 2)))
        )

    assert run_on_processes("gloo", 2, program, tmp_path) == [(1, True)] * 2


def groups_save_apart(folder):
    """Two groups of two ranks, each with a store of its own."""
    group = Mesh(which=2, rank=2).connect("rank")["rank"]
    which, rank = divmod(dist.get_rank(), 2)
    checkpointer = Checkpointer(LocalStore(folder / str(which)), group)
    checkpointer.save(1, {"x": sharded_along(0, torch.full((2,), float(dist.get_rank())), rank, 2)})
    return checkpointer.load().state["x"].tolist()


def test_groups_save_apart(tmp_path):
    run = Cluster(4).run(groups_save_apart, tmp_path)
    assert run.results == ([0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3])


# One of them fails


class FullDisk(LocalStore):
    """On one rank."""

    def __init__(self, folder, rank):
        super().__init__(folder)
        self.fails = dist.get_rank() == rank

    def write(self, directory, name, chunks):
        if self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(directory, name, chunks)


def one_cannot_write(folder, which, asynchronous, mute):
    """What each rank is told, and that all go on afterwards."""
    state = layout(dist.get_rank(), dist.get_world_size())
    Checkpointer(LocalStore(folder)).save(1, state)
    store = FullDisk(folder, which)
    if mute and store.fails:
        store.note = lambda *_: store.write("", "", [])  # there is no room for a note either
    checkpointer, said = Checkpointer(store), ""
    try:
        if asynchronous:
            checkpointer.save_async(2, state)
            if dist.get_rank() == 0 and not mute and which:  # it knows of the other's failure, and not of the reason
                checkpointer._under_way._thread.join(10)
            checkpointer.wait()
        else:
            checkpointer.save(2, state)
    except CheckpointError as error:
        said = str(error)
    left = sorted(path.name for path in folder.iterdir())
    dist.barrier()
    store.fails = False
    store.__dict__.pop("note", None)
    checkpointer.save(3, state)
    return said, left


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("which", "mute"), [(0, False), (2, False), (2, True)])
def test_if_one_rank_cannot_write_none_publishes_and_all_name_it(tmp_path, which, asynchronous, mute):
    run = Cluster(3).run(one_cannot_write, tmp_path, which, asynchronous, mute)
    said = f"step 2 was not saved: rank {which}: OSError: [Errno 28] No space left on device"
    for rank, (error, left) in enumerate(run.results):
        assert error == said + ". Earlier checkpoints are as they were"
        if rank == 0:
            assert left == ["latest", "step-00000001"]
    loaded = Checkpointer(LocalStore(tmp_path)).load()
    assert loaded.step == 3 and torch.equal(loaded.state["flat"], WHOLE["flat"])


def one_cannot_begin(folder, what):
    """Rank 1 alone cannot copy its state, or cannot start a thread: what both are told, and whether both go on."""
    checkpointer, rank = Checkpointer(LocalStore(folder)), dist.get_rank()
    state, said = {"x": sharded_along(0, torch.full((3,), float(rank)), rank, 2)}, ""
    if rank == 1:
        owner = checkpointer._staging if what == "copy" else threading.Thread
        name = "copy" if what == "copy" else "start"
        plain = getattr(owner, name)

        def fails(*_):
            setattr(owner, name, plain)
            raise RuntimeError("there is no room")

        setattr(owner, name, fails)
    checkpointer.save_async(1, state)
    try:
        checkpointer.wait()
    except CheckpointError as error:
        said = str(error)
    checkpointer.save(2, state)
    return said, checkpointer.load().step


@pytest.mark.parametrize("what", ["copy", "start"])
def test_if_one_rank_cannot_begin_all_hear_of_it_and_stay_in_step(tmp_path, what):
    said = "step 1 was not saved: rank 1: RuntimeError: there is no room. Earlier checkpoints are as they were"
    assert Cluster(2).run(one_cannot_begin, tmp_path, what).results == ((said, 2), (said, 2))


def refers_to_what_is_gone(folder):
    """Rank 1's tensor lies in step 1 for ever; rank 0 writes its own anew in each step."""
    checkpointer, rank = Checkpointer(LocalStore(folder), keep=9), dist.get_rank()
    for step in (1, 2, 3):
        checkpointer.save(step, {"same": torch.ones(5)} if rank else {"changes": torch.full((5,), float(step))})
        if rank == 0 and step == 2:
            shutil.rmtree(folder / "step-00000001")
        dist.barrier()
    return checkpointer.load().step


def test_what_somebody_removed_is_not_referred_to_by_any_rank(tmp_path):
    assert Cluster(2).run(refers_to_what_is_gone, tmp_path).results == (3, 3)


def damaged_for_one(folder):
    """Rank 1 alone needs the damaged bytes of the newest."""
    rank = dist.get_rank()
    checkpointer = Checkpointer(LocalStore(folder), full_every=1)
    for step in (1, 2):
        checkpointer.save(step, {"x": sharded_along(0, torch.full((64,), float(step)), rank, 3)})
    if rank == 0:
        path = folder / "step-00000002/rank-00001.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\1")
    dist.barrier()
    mine = torch.zeros(64)
    loaded = checkpointer.load({"x": sharded_along(0, mine, rank, 3)})
    return loaded.step, mine.unique().tolist(), loaded.skipped


def test_all_ranks_fall_back_together(tmp_path):
    run = Cluster(3).run(damaged_for_one, tmp_path)
    for step, values, skipped in run.results:
        assert (step, values) == (1, [1.0])
        assert (
            skipped[0].startswith("step-00000002: 'x' is not what was written: bytes")
            and "(seen by rank 1)" in skipped[0]
        )


def disagree(folder, what):
    rank = dist.get_rank()
    state = {"x": torch.zeros(4 + (rank if what == "shape" else 0))}
    if what == "missing part":
        state["y"] = Sharded((3,), torch.float32, (((rank,), torch.zeros(1)),))
    if what == "type":
        state["z"] = torch.zeros(1, dtype=torch.complex128) if rank == 1 else torch.zeros(1)
    Checkpointer(LocalStore(folder)).save(1 + (rank if what == "step" else 0), state)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("shape", "'x' is ('F32', (5,)) on rank 1, and ('F32', (4,)) elsewhere"),
        ("missing part", "the parts of 'y' on all ranks have 2 elements together"),
        ("type", "rank 1: torch.complex128"),
        ("step", "rank 1 saves step 2, and rank 0 step 1"),
    ],
)
def test_what_ranks_disagree_about_is_named_and_nothing_is_left(tmp_path, what, says):
    with pytest.raises(RankFailed) as caught:
        Cluster(2).run(disagree, tmp_path, what)
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class Broken(torch.Tensor):
    nbytes = property(lambda self: 1 / 0)


def cannot_save(folder, name, value):
    try:
        Checkpointer(LocalStore(folder)).save(1, {"w": torch.ones(2), **({name: value} if dist.get_rank() else {})})
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("x", {1, 2}, "'x': set: expected a tensor"),
        (1, torch.ones(1), "name 1: expected text"),
        ("\ud800", 1, r"name '\ud800': expected text"),
        ("x", "\ud800", "'x': text with a lone surrogate"),
        ("x", torch.eye(3).to_sparse(), "'x' is a sparse tensor: save its indices"),
        ("x", torch.ones(2).as_subclass(Broken), "ZeroDivisionError"),
    ],
)
def test_what_one_rank_cannot_save_is_the_same_error_on_all(tmp_path, name, value, says):
    first, second = Cluster(2).run(cannot_save, tmp_path, name, value).results
    assert first == second and first[0] == "ValueError"
    assert "step 1 was not saved: rank 1: " in first[1] and says in first[1]
    assert list(tmp_path.iterdir()) == []


def nobody_asks(folder):
    rank = dist.get_rank()
    checkpointer = Checkpointer(LocalStore(folder))
    checkpointer.save(1, {"a": torch.ones(2), "b": torch.ones(2), "c": torch.ones(2)})
    checkpointer.load({"ab"[rank]: torch.zeros(2)})


def test_what_no_rank_asks_for_is_an_error_and_what_one_asks_for_is_not(tmp_path):
    with pytest.raises(RankFailed, match="step-00000001 has 'c', and no rank asks for that"):
        Cluster(2).run(nobody_asks, tmp_path)
