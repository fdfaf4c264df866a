"""The same promises of a folder, of fsspec's file systems, and of an S3 server; and the order of operations in each."""

import copy
import os
import re
import shutil
import threading
import warnings
from pathlib import Path

import pytest
import torch
from threeloops.training.checkpoint import Checkpointer, CheckpointError, LocalStore, ObjectStore
from threeloops.training.checkpoint import store as store_module
from threeloops.training.checkpoint.manifest import decode
from threeloops.training.cluster import Cluster


def state(step):
    return {
        "w": torch.randn(300_000, generator=torch.Generator().manual_seed(step)),
        "same": torch.ones(9),
        "step": step,
    }


@pytest.fixture(scope="module")
def s3_url():
    """A real server, on a free port."""
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    import boto3

    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://127.0.0.1:{port}"
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket="runs")
    yield url
    server.stop()


OPTIONS = {"key": "test", "secret": "test", "client_kwargs": {"region_name": "us-east-1"}, "use_listings_cache": False}


@pytest.fixture(params=["folder", "memory", "file", "s3"])
def store(request, tmp_path):
    if request.param == "folder":
        return LocalStore(tmp_path)
    if request.param == "s3":
        url = request.getfixturevalue("s3_url")
        return ObjectStore(f"s3://runs/{tmp_path.name}", endpoint_url=url, **OPTIONS)
    return ObjectStore(f"memory://{tmp_path}" if request.param == "memory" else f"file://{tmp_path}", auto_mkdir=True)


def load(store, **keywords):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        return Checkpointer(store).load(**keywords), [str(each.message) for each in said]


def assert_step(store, step):
    loaded, _ = load(store)
    assert loaded.step == loaded.state["step"] == step and torch.equal(loaded.state["w"], state(step)["w"])


def test_what_is_saved_is_loaded_and_old_ones_go(store):
    checkpointer = Checkpointer(store, keep=2, full_every=3)
    with pytest.raises(CheckpointError, match=f"{re.escape(str(store))} has none"):
        checkpointer.load()
    for step in (1, 2, 3):
        checkpointer.save(step, state(step))
        assert_step(store, step)
    checkpointer.save_async(4, state(4))
    checkpointer.wait()
    assert_step(store, 4)
    assert sorted(store.directories()) == ["step-00000001", "step-00000003", "step-00000004"]  # 3 refers to 1
    assert store.pointer() == "step-00000004"


def test_what_was_begun_is_no_checkpoint_and_goes_at_the_next_save(store):
    Checkpointer(store).save(1, state(1))
    store.begin("step-00000002")
    store.write("step-00000002", "rank-00000.safetensors", [b"half"])
    store.note("step-00000002", "1", b"noted")
    assert store.read_note("step-00000002", "1") == b"noted"
    assert store.directories() == ["step-00000001"]
    assert_step(store, 1)
    Checkpointer(store).save(3, state(3))
    assert sorted(store.directories()) == ["step-00000001", "step-00000003"]
    with pytest.raises(FileNotFoundError):
        store.read_note("step-00000002", "1")


def test_reading_behind_the_end_is_an_error(store):
    Checkpointer(store).save(1, state(1))
    name = decode(store.manifest("step-00000001")).files[0].name
    size = store.size("step-00000001", name)
    into = bytearray(10)
    store.read("step-00000001", name, size - 10, memoryview(into))
    assert bytes(into) != bytes(10)
    with pytest.raises((EOFError, OSError)):
        store.read("step-00000001", name, size - 9, memoryview(into))
    for wrong in ("manifest.json", "rank-00001.safetensors"):
        with pytest.raises(FileNotFoundError):
            store.size("step-00000009", wrong)


def test_a_damaged_object_is_found(store):
    checkpointer = Checkpointer(store, full_every=1)
    for step in (1, 2):
        checkpointer.save(step, state(step))
    name = f"step-00000002/{decode(store.manifest('step-00000002')).files[0].name}"
    if isinstance(store, LocalStore):
        path = store.folder / name
        path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    else:
        data = store._files.cat_file(store._at(name))
        store._files.pipe_file(store._at(name), data[:-1] + b"\x55")
    loaded, said = load(store)
    assert loaded.step == 1 and "'same' is not what was written" in said[0] or "'w' is not what was written" in said[0]


def test_a_write_that_fails_leaves_nothing(store):
    Checkpointer(store).save(1, state(1))

    def chunks():
        yield b"x" * 100
        raise OSError("the network is down")

    store.begin("step-00000002")
    with pytest.raises(OSError, match="the network is down"):
        store.write("step-00000002", "rank-00000.safetensors", chunks())
    store.abort("step-00000002")
    assert store.directories() == ["step-00000001"]


def test_of_two_jobs_that_save_one_step_the_first_to_begin_fails_and_the_other_is_whole(store):
    """A job that should have ended, and its successor."""
    jobs = []
    for number in (3, 4):
        own, may = copy.copy(store), threading.Event()
        own.write = lambda *words, may=may: (may.wait(10), store.write(*words))[1]
        job = Checkpointer(own)
        job.save_async(2, state(number))
        jobs.append((job, may))
    (first, may), (second, may_too) = jobs
    may.set()
    with pytest.raises(CheckpointError, match="step 2 was not saved: rank 0: FileNotFoundError"):
        first.wait()
    may_too.set()
    second.wait()
    loaded, said = load(store)
    assert not said and loaded.step == 2 and torch.equal(loaded.state["w"], state(4)["w"])


def test_if_the_pointer_cannot_be_moved_the_checkpoint_is_there(store, monkeypatch):
    checkpointer = Checkpointer(store)
    checkpointer.save(1, state(1))

    def fails(directory):
        raise OSError("the network is down")

    with monkeypatch.context() as patch:
        patch.setattr(store, "point", fails)
        with pytest.raises(CheckpointError, match="step 2 was written, but the pointer to it could not be moved.*down"):
            checkpointer.save(2, state(2))
    assert load(store, step=2)[0].state["step"] == 2
    checkpointer.save(3, state(3))
    assert_step(store, 3)


def test_ranks_save_to_one_bucket(s3_url, tmp_path):
    def program(url, bucket):
        import torch.distributed as dist
        from threeloops.training.checkpoint import sharded_along

        store = ObjectStore(bucket, endpoint_url=url, **OPTIONS)
        checkpointer = Checkpointer(store)
        part = torch.full((4, 3), float(dist.get_rank()))
        checkpointer.save_async(1, {"w": sharded_along(1, part, dist.get_rank(), 2)})
        part.zero_()
        checkpointer.wait()
        return checkpointer.load().state["w"].tolist()

    expected = [[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]] * 4
    assert Cluster(2).run(program, s3_url, f"s3://runs/{tmp_path.name}").results == (expected, expected)


def test_what_others_keep_in_the_folder_stays(tmp_path):
    (tmp_path / "mine.tmp").write_bytes(b"notes")
    (tmp_path / "data.tmp").mkdir()
    (tmp_path / "step-00000001.tmp").mkdir()
    (tmp_path / "step-00000001.abcdefgh.tmp").mkdir()
    Checkpointer(LocalStore(tmp_path)).save(1, state(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.tmp", "latest", "mine.tmp", "step-00000001"]


# The order of operations, which is what survives a crash


def recorded(monkeypatch, folder):
    """What a store asks of the operating system, in order: fsync and rename, by name."""
    done = []

    def name(path):
        inside = str(Path(os.fsdecode(path)).relative_to(folder)) if Path(path) != folder else "."
        return re.sub(r"\.[a-z]{8}\.tmp", ".tmp", inside)  # the attempt's own name

    fsync = os.fsync

    def synced(descriptor):
        done.append(f"fsync {name(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fsync(descriptor)

    def noted(verb, original):
        def call(source, target):
            done.append(f"{verb} {name(source)} {name(target)}")
            original(source, target)

        return call

    monkeypatch.setattr(os, "fsync", synced)
    for verb in ("rename", "replace"):
        monkeypatch.setattr(os, verb, noted(verb, getattr(os, verb)))
    return done


def test_a_folder_is_synced_before_it_is_renamed_and_the_pointer_moves_last(tmp_path, monkeypatch):
    checkpointer = Checkpointer(LocalStore(tmp_path))
    done = recorded(monkeypatch, tmp_path)
    checkpointer.save(7, state(7))
    assert done == [
        "fsync step-00000007.tmp/rank-00000.safetensors",
        "fsync step-00000007.tmp/manifest.json",
        "fsync step-00000007.tmp",
        "rename step-00000007.tmp step-00000007",
        "fsync .",
        "fsync latest.tmp",
        "replace latest.tmp latest",
        "fsync .",
    ]


def test_a_removal_is_durable_before_the_files_go(tmp_path, monkeypatch):
    """Or a crash may leave the old name, with some of its files."""
    store = LocalStore(tmp_path)
    Checkpointer(store).save(1, state(1))
    done = recorded(monkeypatch, tmp_path)
    rmtree = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda path: (done.append("rmtree"), rmtree(path)))
    store.remove("step-00000001")
    assert done == ["rename step-00000001 step-00000001.tmp", "fsync .", "rmtree"]


def test_folders_that_are_made_for_a_store_are_synced_into_those_above(tmp_path, monkeypatch):
    done = recorded(monkeypatch, tmp_path)
    LocalStore(tmp_path / "a" / "b")
    assert done == ["fsync a", "fsync ."]
    LocalStore(tmp_path / "a" / "b")
    assert len(done) == 2


def test_a_file_is_synced_with_all_of_its_data(tmp_path, monkeypatch):
    """fsync before the buffer is flushed would sync nothing."""
    sizes = {}
    fsync = os.fsync

    def name(fd):
        return re.sub(r"\.[a-z]{8}\.tmp/", "/", os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", lambda fd: (sizes.update({name(fd): os.fstat(fd).st_size}), fsync(fd)))
    Checkpointer(LocalStore(tmp_path)).save(7, {"tiny": torch.ones(1)})
    for path in [*(tmp_path / "step-00000007").iterdir(), tmp_path / "latest"]:
        was = str(path) if "step" in path.parent.name else f"{path}.tmp"
        assert sizes[was] == path.stat().st_size > 0


def test_the_disk_writes_the_beginning_of_a_file_while_the_rest_is_made(tmp_path, monkeypatch):
    """The stretches lie one after the other, and fsync comes last: only that makes them durable."""
    monkeypatch.setattr(store_module, "_WRITEBACK", 100)
    done = []
    monkeypatch.setattr(store_module, "_begin_writeback", lambda file, *stretch: done.append(stretch))
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (done.append("fsync"), fsync(file)))
    store = LocalStore(tmp_path)
    store.begin("step-00000001.a")
    done.clear()
    store.write("step-00000001.a", "f", [bytes(60)] * 5)
    assert done == [(0, 120), (120, 120), "fsync"]


def test_beginning_to_write_back_changes_nothing_and_may_fail(tmp_path):
    path = tmp_path / "f"
    with path.open("wb") as file:
        file.write(b"abc")
        file.flush()
        store_module._begin_writeback(file.fileno(), 0, 3)
        store_module._begin_writeback(file.fileno(), -1, 3)
    store_module._begin_writeback(1 << 20, 0, 3)
    assert path.read_bytes() == b"abc"


def test_the_manifest_is_the_last_object_before_the_pointer(tmp_path, monkeypatch):
    store = ObjectStore(f"memory://{tmp_path}")
    puts = []
    files = store._files
    pipe, opened = files.pipe_file, files.open

    def put(path, data, **keywords):
        puts.append(re.sub("^[a-z]{8}-", "", path.rpartition("/")[2]))
        pipe(path, data, **keywords)

    def open_to_write(path, mode="rb", **keywords):
        puts.append(re.sub("^[a-z]{8}-", "", path.rpartition("/")[2]))
        return opened(path, mode, **keywords)

    monkeypatch.setattr(files, "pipe_file", put)
    monkeypatch.setattr(files, "open", open_to_write)
    Checkpointer(store).save(1, state(1))
    assert list(dict.fromkeys(puts)) == ["note-begun", "rank-00000.safetensors", "manifest.json", "latest"]
