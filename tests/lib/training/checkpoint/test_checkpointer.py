"""One process: what is saved is loaded, whatever happens to files; saves in the background; what is kept."""

import errno
import hashlib
import re
import shutil
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from threeloops.training.checkpoint import (
    Checkpointer,
    CheckpointError,
    CorruptCheckpointError,
    LocalStore,
    Sharded,
    flat_range,
    saving,
)
from threeloops.training.checkpoint.manifest import BLOCK, decode
from threeloops.training.checkpoint.writer import merge


def state(step, size=11):
    generator = torch.Generator().manual_seed(step)
    return {
        "weight": torch.randn(3, size, generator=generator),
        "counts": torch.randint(0, 99, (5,), generator=generator),
        "half": torch.randn(7, generator=generator).bfloat16(),
        "scalar": torch.tensor(float(step)),
        "empty": torch.empty(0, 4),
        "epoch": step,
        "nested": {"lr": [0.1 / (1 + step), None, "cosine"]},
    }


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype and torch.equal(found[name], value), name
        else:
            assert found[name] == value


def checkpoints(folder):
    return sorted(path.name for path in folder.iterdir())


def saved(folder, *steps, **options):
    checkpointer = Checkpointer(LocalStore(folder), **options)
    for step in steps:
        checkpointer.save(step, state(step))
    return checkpointer


def load(folder, *arguments, **keywords):
    """What is loaded, and the warnings on the way."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loaded = Checkpointer(LocalStore(folder)).load(*arguments, **keywords)
    return loaded, [str(each.message) for each in said]


def test_what_is_saved_is_loaded(tmp_path):
    saved(tmp_path / "new" / "folder", 1, 2)
    loaded, said = load(tmp_path / "new" / "folder")
    assert (loaded.step, loaded.skipped, said) == (2, (), [])
    assert_same(loaded.state, state(2))
    assert checkpoints(tmp_path / "new" / "folder") == ["latest", "step-00000001", "step-00000002"]
    assert (tmp_path / "new" / "folder" / "latest").read_text() == "step-00000002"


def test_a_template_is_filled_in_place_whatever_its_strides(tmp_path):
    saved(tmp_path, 3)
    into = {name: torch.zeros_like(each) for name, each in state(3).items() if isinstance(each, torch.Tensor)}
    into["weight"] = torch.zeros(11, 3).T
    parameter = into["half"] = torch.nn.Parameter(into["half"])
    loaded, _ = load(tmp_path, into)
    assert loaded.state["half"] is parameter
    assert_same(loaded.state, state(3))


def test_a_parameter_is_filled_however_it_lies(tmp_path):
    value = torch.arange(12.0).view(3, 4)
    Checkpointer(LocalStore(tmp_path)).save(1, {"w": value})
    transposed, part = torch.nn.Parameter(torch.zeros(4, 3).T), torch.nn.Parameter(torch.zeros(2, 4))
    load(tmp_path, {"w": transposed})
    load(tmp_path, {"w": Sharded((3, 4), torch.float32, (((1, 0), part),))})
    assert torch.equal(transposed, value) and torch.equal(part, value[1:])


def test_every_device_is_waited_for(monkeypatch):
    class OnGPU(torch.Tensor):
        """Of a machine that nobody here has."""

        is_cuda = True
        device = property(lambda self: torch.device("cuda", self.number))

    tensors = {number: torch.full((3,), float(number)) for number in range(2)}
    staging, waited = saving.Staging(), []
    staging.reserve(tensors)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    for number in tensors:
        tensors[number] = tensors[number].as_subclass(OnGPU)
        tensors[number].number = number
    staging.copy(tensors)
    assert set(waited) == {torch.device("cuda", 0), torch.device("cuda", 1)}


def test_tensors_that_are_not_contiguous_are_saved(tmp_path):
    value = torch.randn(4, 6)
    Checkpointer(LocalStore(tmp_path)).save(1, {"t": value.T, "s": value[:, ::2]})
    loaded, _ = load(tmp_path)
    assert torch.equal(loaded.state["t"], value.T) and torch.equal(loaded.state["s"], value[:, ::2])


def test_a_load_reads_only_the_blocks_that_it_needs(tmp_path):
    rows, width = 40, BLOCK // 16  # four rows to a block
    value = torch.randn(rows, width)
    Checkpointer(LocalStore(tmp_path)).save(1, {"w": value})
    store = LocalStore(tmp_path)
    read = []
    original = store.read
    store.read = lambda directory, name, offset, into: (read.append(len(into)), original(directory, name, offset, into))
    some = torch.zeros(2, width)
    Checkpointer(store).load({"w": Sharded((rows, width), torch.float32, (((7, 0), some),))})
    assert torch.equal(some, value[7:9])
    assert sorted(read)[1:] == [2 * BLOCK]  # beside the header: rows 7 and 8 lie in blocks 1 and 2


def test_whatever_box_is_asked_for(tmp_path):
    value = torch.randn(5, 7, 9)
    parts = [flat_range((5, 7, 9), 0, value.flatten()[:100]), flat_range((5, 7, 9), 100, value.flatten()[100:])]
    whole = Sharded((5, 7, 9), torch.float32, parts[0].parts + parts[1].parts)
    Checkpointer(LocalStore(tmp_path)).save(1, {"w": whole})
    for start in ((0, 0, 0), (1, 2, 3), (4, 6, 8), (2, 0, 5)):
        into = torch.zeros([min(3, n - s) for n, s in zip(value.shape, start, strict=True)])
        load(tmp_path, {"w": Sharded((5, 7, 9), torch.float32, ((start, into),))})
        assert torch.equal(into, value[tuple(slice(s, s + n) for s, n in zip(start, into.shape, strict=True))])


# What is broken is found


def test_every_flipped_bit_and_every_truncation_of_every_file_is_found(tmp_path):
    saved(tmp_path, 1, 2, full_every=1)
    newest = tmp_path / "step-00000002"
    for path in newest.iterdir():
        data = path.read_bytes()
        damaged = [data[:number] for number in range(0, len(data), 7)] + [data + b"\0"]
        damaged += [data[:n] + bytes([data[n] ^ 1 << n % 8]) + data[n + 1 :] for n in range(len(data))]
        for each in damaged:
            path.write_bytes(each)
            loaded, said = load(tmp_path)
            assert loaded.step == 1 and len(said) == len(loaded.skipped) == 1
            assert said[0].startswith("step-00000002: ") and "Loaded step-00000001 in its place" in said[0]
        assert_same(loaded.state, state(1))
        path.write_bytes(data)
    assert load(tmp_path)[0].step == 2


def test_a_missing_file_and_an_empty_folder_are_found(tmp_path):
    saved(tmp_path, 1, 2)
    (tmp_path / "step-00000002/rank-00000.safetensors").unlink()
    (tmp_path / "step-00000003").mkdir()
    loaded, said = load(tmp_path)
    assert loaded.step == 1 and len(said) == 2
    assert "step-00000002: step-00000002/rank-00000.safetensors cannot be read" in said[0]


def test_a_renamed_checkpoint_is_not_taken_for_another_step(tmp_path):
    saved(tmp_path, 1)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / "step-00000002")
    (tmp_path / "latest").unlink()
    loaded, said = load(tmp_path)
    assert loaded.step == 1 and "the manifest is that of step 1" in said[0]


@pytest.mark.parametrize("pointer", [None, b"", b"step-00000009", b"\xff\x00", b"../x", b"step-00000002" * 50])
def test_the_pointer_is_a_hint(tmp_path, pointer):
    saved(tmp_path, 1, 2)
    (tmp_path / "latest").unlink()
    if pointer is not None:
        (tmp_path / "latest").write_bytes(pointer)
    assert load(tmp_path)[0].step == 2


def test_without_a_whole_checkpoint_an_error_says_what_each_lacks(tmp_path):
    with pytest.raises(CheckpointError, match=f"there is no whole checkpoint. {re.escape(str(tmp_path))} has none"):
        load(tmp_path)
    saved(tmp_path, 1, 2)
    for step in (1, 2):
        (tmp_path / f"step-0000000{step}/manifest.json").unlink()
    with pytest.raises(CheckpointError, match="step-00000002.*step-00000001.*manifest.json"):
        load(tmp_path)


def test_a_step_that_is_asked_for_by_number_has_no_substitute(tmp_path):
    saved(tmp_path, 1, 2)
    assert load(tmp_path, step=1)[0].step == 1
    with pytest.raises(CheckpointError, match="no whole checkpoint of step 3"):
        load(tmp_path, step=3)
    (tmp_path / "step-00000001/manifest.json").unlink()
    with pytest.raises(CheckpointError, match="no whole checkpoint of step 1. step-00000001: "):
        load(tmp_path, step=1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"other": torch.zeros(1)}, "it does not have 'other'"),
        ({"weight": torch.zeros(3, 12)}, "'weight' has type F32 and shape (3, 11) there: expected F32 and (3, 12)"),
        ({"half": torch.zeros(7)}, "'half' has type BF16"),
        ({"weight": None}, "has 'weight', and no rank asks for that"),
    ],
)
def test_a_template_that_does_not_fit_is_no_damage_to_be_skipped(tmp_path, change, says):
    saved(tmp_path, 1, 2)
    template = {name: each for name, each in {**state(1), **change}.items() if each is not None}
    with pytest.raises(ValueError) as caught:
        load(tmp_path, template)
    assert says in str(caught.value) and "step-00000002" in str(caught.value)


def test_without_strict_some_tensors_may_be_left_out(tmp_path):
    saved(tmp_path, 1)
    loaded, _ = load(tmp_path, {"counts": torch.zeros(5, dtype=torch.int64)}, strict=False)
    assert_same(loaded.state, {name: state(1)[name] for name in ("counts", "epoch", "nested")})


def test_plain_values_are_what_they_were(tmp_path):
    values = {
        "floats": [float("inf"), -float("inf"), 0.1, 1e-310, 2**100], "keys": {30: 1, (1, "a"): None, True: {}},
        "!like a tag": {"!float": "1"}, "bytes": b"\0\xff", "tuple": (1, (2.0, "x"), []), "text": "ü\n",
    }  # fmt: skip
    Checkpointer(LocalStore(tmp_path)).save(1, {**values, "nan": float("nan")})
    found = load(tmp_path)[0].state
    assert found.pop("nan") != 0 and repr(found) == repr(values) and found == values


def test_plain_values_must_be_json(tmp_path):
    with pytest.raises(ValueError, match="rank 0: 'x': object: expected a tensor, or a number"):
        Checkpointer(LocalStore(tmp_path)).save(1, {"x": object()})
    assert checkpoints(tmp_path) == []


@pytest.mark.parametrize("value", [np.float64("inf"), np.float64(1)])
def test_numbers_of_numpy_are_no_plain_values(tmp_path, value):
    with pytest.raises(ValueError, match=r"rank 0: 'x': float64 would come back as float: save float\(value\)"):
        Checkpointer(LocalStore(tmp_path)).save(1, {"x": value})


def test_a_tensor_inside_of_a_value_is_named(tmp_path):
    with pytest.raises(ValueError, match="'ema': a tensor inside of a value: give it a name of its own in the state"):
        Checkpointer(LocalStore(tmp_path)).save(1, {"ema": {"decay": 0.9, "w": torch.ones(2)}})


def test_parts_must_make_up_the_tensor(tmp_path):
    half = Sharded((4,), torch.float32, (((0,), torch.zeros(2)),))
    with pytest.raises(ValueError, match="the parts of 'w' on all ranks have 2 elements together"):
        Checkpointer(LocalStore(tmp_path)).save(1, {"w": half})


def test_parts_that_overlap_and_leave_a_gap_are_both_named(tmp_path):
    parts = Sharded((4,), torch.float32, (((0,), torch.ones(2)), ((1,), torch.ones(2))))  # 4 elements together
    with pytest.raises(ValueError, match=r"parts of .w. overlap: that of .* at \(0,\), and that of .* at \(1,\)"):
        Checkpointer(LocalStore(tmp_path)).save(1, {"w": parts})
    assert checkpoints(tmp_path) == []


def test_what_no_load_would_take_is_not_committed(tmp_path, monkeypatch):
    checkpointer = saved(tmp_path, 1)
    monkeypatch.setattr(saving, "merge", lambda parts, described: (parts[0].files[:0], merge(parts, described)[1]))
    with pytest.raises(CheckpointError, match="step 2 was not saved: rank 0: CorruptCheckpointError.*in file 0"):
        checkpointer.save(2, state(2))
    assert checkpoints(tmp_path) == ["latest", "step-00000001"] and load(tmp_path)[0].step == 1


def test_the_newest_checkpoint_is_never_removed(tmp_path):
    saved(tmp_path, 1, 2)
    (tmp_path / "step-00000002/manifest.json").write_bytes(b"torn")
    with pytest.raises(CorruptCheckpointError, match="4 bytes"):
        saving._retain(LocalStore(tmp_path), "step-00000002", frozenset(["step-00000001"]), keep=1, milestones=0)
    assert checkpoints(tmp_path) == ["latest", "step-00000001", "step-00000002"]


class CountingReads(LocalStore):
    """A store that lists the manifests that are read from it."""

    def __init__(self, folder):
        super().__init__(folder)
        self.read = []

    def manifest(self, directory):
        self.read.append(directory)
        return super().manifest(directory)


def test_keeping_and_removing_reads_each_manifest_once(tmp_path):
    saved(tmp_path, 1, 2)
    store = CountingReads(tmp_path)
    saving._retain(store, "step-00000002", frozenset(["step-00000001"]), keep=2, milestones=0)
    assert sorted(store.read) == ["step-00000001", "step-00000002"]


# Disks that fail


class Failing(LocalStore):
    """Takes so many bytes, and then the disk is full."""

    left = float("inf")

    def write(self, directory, name, chunks):
        return super().write(directory, name, map(self._counted, chunks))

    def _counted(self, chunk):
        self.left -= len(chunk)
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return chunk


@pytest.mark.parametrize("room", [0, 100, 700, 1100])
def test_on_a_full_disk_the_old_checkpoint_stays_and_training_goes_on(tmp_path, room):
    store = Failing(tmp_path)
    checkpointer = Checkpointer(store)
    checkpointer.save(1, state(1))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    store.left = room
    with pytest.raises(CheckpointError, match="step 2 was not saved: rank 0: OSError.*No space left on device"):
        checkpointer.save(2, state(2))
    checkpointer.save_async(3, state(3))
    with pytest.raises(CheckpointError, match="step 3 was not saved"):
        checkpointer.wait()
    checkpointer.wait()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert checkpoints(tmp_path) == ["latest", "step-00000001"]
    store.left = float("inf")
    checkpointer.save(4, state(4))
    assert_same(load(tmp_path)[0].state, state(4))


def test_what_failed_in_the_background_is_raised_by_the_next_save_which_is_not_begun(tmp_path):
    store = Failing(tmp_path)
    checkpointer = Checkpointer(store)
    store.left = 0
    checkpointer.save_async(1, state(1))
    with pytest.raises(CheckpointError, match="step 1 was not saved"):
        checkpointer.save(2, state(2))
    assert checkpoints(tmp_path) == []


def test_what_an_interrupted_save_left_is_removed(tmp_path):
    (tmp_path / "step-00000001.tmp").mkdir()
    (tmp_path / "step-00000001.tmp" / "rank-00000.safetensors").write_bytes(b"half")
    (tmp_path / "latest.tmp").write_bytes(b"st")
    saved(tmp_path, 1)
    assert checkpoints(tmp_path) == ["latest", "step-00000001"]


# In the background


class Slow(LocalStore):
    """Writes when it is let."""

    def __init__(self, folder):
        super().__init__(folder)
        self.may, self.writing = threading.Event(), threading.Event()

    def write(self, directory, name, chunks):
        self.writing.set()
        assert self.may.wait(10)
        return super().write(directory, name, chunks)


def test_what_is_saved_is_what_it_was_when_save_async_was_called(tmp_path):
    store, live = Slow(tmp_path), state(1)
    live["strided"] = torch.randn(6, 4)[:, ::2]
    as_it_was = {name: each.clone() if isinstance(each, torch.Tensor) else each for name, each in live.items()}
    checkpointer = Checkpointer(store, state=live)
    checkpointer.save_async(1, live)
    assert store.writing.wait(10)
    for each in live.values():
        if isinstance(each, torch.Tensor):
            each.add_(1)
    live["nested"]["lr"] = "changed"
    assert not (tmp_path / "latest").exists()
    store.may.set()
    checkpointer.wait()
    as_it_was["nested"] = state(1)["nested"]
    assert_same(load(tmp_path)[0].state, as_it_was)


def test_a_save_waits_for_the_one_before_it_and_says_how_long(tmp_path):
    store = Slow(tmp_path)
    checkpointer = Checkpointer(store)
    first = checkpointer.save_async(1, state(1))
    assert store.writing.wait(10)
    stalls, waits, wait = [], threading.Event(), checkpointer.wait
    checkpointer.wait = lambda: (waits.set(), wait())
    second = threading.Thread(target=lambda: stalls.append(checkpointer.save_async(2, state(2))))
    second.start()
    assert waits.wait(10)
    seen = time.perf_counter()  # the call began before it
    second.join(0.05)
    assert second.is_alive() and not (tmp_path / "step-00000002.tmp").exists()
    released = time.perf_counter()
    store.may.set()
    second.join(10)
    checkpointer.wait()
    assert stalls[0].waited >= released - seen and stalls[0].waited > first.waited >= 0 <= first.copied
    assert_same(load(tmp_path, step=1)[0].state, state(1))
    assert_same(load(tmp_path)[0].state, state(2))


def test_the_staging_buffer_is_made_with_the_checkpointer_and_used_by_every_save(tmp_path):
    checkpointer = Checkpointer(LocalStore(tmp_path), state=state(0))
    buffer = checkpointer._staging._buffer
    expected = sum(-(-t.nbytes // 64) * 64 for t in state(0).values() if isinstance(t, torch.Tensor))
    assert buffer.numel() == expected
    for step in (1, 2):
        checkpointer.save_async(step, state(step))
    checkpointer.wait()
    assert checkpointer._staging._buffer is buffer
    checkpointer.save_async(3, state(3, size=500))
    checkpointer.save_async(4, state(4))
    checkpointer.wait()
    assert_same(load(tmp_path, step=3)[0].state, state(3, size=500))
    assert_same(load(tmp_path)[0].state, state(4))


def test_after_an_interrupt_the_save_is_still_under_way_and_the_next_call_waits_for_it(tmp_path, monkeypatch):
    store = Slow(tmp_path)
    checkpointer = Checkpointer(store)
    checkpointer.save_async(1, state(1))

    def interrupted():
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpointer._under_way, "written", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpointer.wait()
    threading.Timer(0.1, store.may.set).start()
    checkpointer.wait()
    assert_same(load(tmp_path)[0].state, state(1))


def test_a_save_that_nobody_waits_for_since_a_collective_failed_becomes_no_checkpoint(tmp_path, monkeypatch):
    store = Slow(tmp_path)
    checkpointer = Checkpointer(store)
    checkpointer.save_async(1, state(1))
    thread = checkpointer._under_way._thread

    def died(mine):
        raise RuntimeError("a rank has died")

    monkeypatch.setattr(checkpointer._under_way, "written", lambda: "")
    monkeypatch.setattr(checkpointer, "_gather", died)
    with pytest.raises(RuntimeError, match="a rank has died"):
        checkpointer.wait()
    monkeypatch.undo()
    store.may.set()
    thread.join(10)
    assert LocalStore(tmp_path).directories() == []
    checkpointer.save(1, state(9))
    assert_same(load(tmp_path)[0].state, state(9))
    assert checkpoints(tmp_path) == ["latest", "step-00000001"]


def test_a_save_that_is_interrupted_while_it_writes_says_so_at_the_next_call(tmp_path, monkeypatch):
    store = LocalStore(tmp_path)
    checkpointer = Checkpointer(store)

    def interrupted(*_):
        raise KeyboardInterrupt

    for method in ("write", "commit"):
        with monkeypatch.context() as patch:
            patch.setattr(store, method, interrupted)
            with pytest.raises(KeyboardInterrupt):
                checkpointer.save(1, state(1))
        with pytest.raises(CheckpointError, match="step 1 was not saved: rank 0: KeyboardInterrupt"):
            checkpointer.wait()
        assert checkpoints(tmp_path) == []
    checkpointer.save(1, state(1))
    assert load(tmp_path)[0].step == 1


AT_EXIT = """
import sys, threading, time, torch
from threeloops.training.checkpoint import Checkpointer, LocalStore, saving
plain = saving.write_part
def late(*arguments):
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    time.sleep(0.1)
    if sys.argv[2]:
        raise OSError(sys.argv[2])
    return plain(*arguments)
saving.write_part = late
Checkpointer(LocalStore(sys.argv[1])).save_async(1, {"w": torch.arange(9)})
"""


@pytest.mark.parametrize("problem", ["", "the disk is gone"])
def test_a_save_that_the_program_does_not_wait_for_is_made_at_its_end_or_it_says_why_not(tmp_path, problem):
    run = subprocess.run([sys.executable, "-c", AT_EXIT, tmp_path, problem], capture_output=True, text=True, timeout=60)
    if problem:
        assert f"step 1 was not saved: rank 0: OSError: {problem}" in run.stderr
    else:
        assert torch.equal(load(tmp_path)[0].state["w"], torch.arange(9)), run.stderr


# Only what has changed


def written(folder, step):
    """Bytes of tensors that a step wrote itself."""
    path = folder / f"step-{step:08d}/rank-00000.safetensors"
    if not path.exists():
        return 0
    data = path.read_bytes()
    return len(data) - 8 - int.from_bytes(data[:8], "little")


def test_an_incremental_save_writes_the_blocks_that_have_changed(tmp_path):
    big = torch.randn(5 * BLOCK // 4 + 3)
    live = {"big": big, "same": torch.randn(BLOCK // 4), "small": torch.zeros(3)}
    checkpointer = Checkpointer(LocalStore(tmp_path), keep=9)
    values = {}

    def save(step):
        checkpointer.save(step, live)
        values[step] = {name: each.clone() for name, each in live.items()}

    save(1)
    big[0] += 1  # block 0
    big[-1] += 1  # block 5, of 12 bytes
    save(2)
    save(3)
    big[BLOCK // 4 : 3 * BLOCK // 4] += 1  # blocks 1 and 2
    live["small"][1] = 7
    save(4)
    live["big"] = live["big"].double()  # another type: nothing to compare with
    save(5)
    total = sum(each.nbytes for each in values[1].values())
    assert [written(tmp_path, step) for step in range(1, 6)] == [
        total, BLOCK + 12, 0, 2 * BLOCK + 12, live["big"].nbytes
    ]  # fmt: skip
    for step, expected in values.items():
        assert_same(load(tmp_path, step=step)[0].state, expected)


def test_the_chain_is_bounded_also_across_a_restart(tmp_path):
    live = {"w": torch.randn(100)}
    checkpointer = Checkpointer(LocalStore(tmp_path), keep=99, full_every=3)
    for step in range(1, 6):
        checkpointer.save(step, live)
    checkpointer = Checkpointer(LocalStore(tmp_path), keep=99, full_every=3)
    checkpointer.load()
    for step in range(6, 9):
        checkpointer.save(step, live)
    assert [written(tmp_path, step) for step in range(1, 9)] == [400, 0, 0, 400, 0, 0, 400, 0]
    chains = [decode((tmp_path / f"step-{step:08d}/manifest.json").read_bytes()).chain for step in range(1, 9)]
    assert chains == [0, 1, 2, 0, 1, 2, 0, 1]


def test_with_full_saves_only_everything_is_written(tmp_path):
    checkpointer = Checkpointer(LocalStore(tmp_path), full_every=1)
    for step in (1, 2):
        checkpointer.save(step, {"w": torch.ones(100)})
        assert written(tmp_path, step) == 400


def test_an_incremental_save_follows_the_one_that_was_loaded_and_not_one_that_failed(tmp_path):
    store = Failing(tmp_path)
    checkpointer = Checkpointer(store, keep=9)
    checkpointer.save(1, {"w": torch.ones(100)})
    store.left = 10
    with pytest.raises(CheckpointError):
        checkpointer.save(2, {"w": torch.zeros(100)})
    store.left = float("inf")
    checkpointer.save(3, {"w": torch.zeros(100)})
    checkpointer.save(4, {"w": torch.ones(100)})
    assert [written(tmp_path, step) for step in (1, 3, 4)] == [400, 400, 400]
    checkpointer.load(step=3)
    checkpointer.save(5, {"w": torch.zeros(100)})
    assert written(tmp_path, 5) == 0
    assert torch.equal(load(tmp_path)[0].state["w"], torch.zeros(100))


def test_what_somebody_removed_is_not_referred_to(tmp_path):
    checkpointer = Checkpointer(LocalStore(tmp_path))
    checkpointer.save(1, {"w": torch.ones(100)})
    shutil.rmtree(tmp_path / "step-00000001")
    checkpointer.save(2, {"w": torch.ones(100)})
    assert written(tmp_path, 2) == 400 and load(tmp_path)[0].step == 2


@pytest.mark.parametrize("step", [-1, 10**18, 5.0, "5", None])
def test_a_step_is_a_whole_number_that_a_directory_can_be_called_by(tmp_path, step):
    with pytest.raises(ValueError, match=r"step = .*: expected a whole number from 0 to"):
        Checkpointer(LocalStore(tmp_path)).save(step, state(1))
    assert checkpoints(tmp_path) == []


def test_a_step_may_be_an_integer_of_numpy(tmp_path):
    Checkpointer(LocalStore(tmp_path)).save(np.int64(3), state(3))
    assert load(tmp_path, step=3)[0].step == 3


# What is kept


def steps(folder):
    return [int(name[5:13]) for name in checkpoints(folder) if name.startswith("step")]


def test_the_last_ones_and_milestones_are_kept(tmp_path):
    checkpointer = Checkpointer(LocalStore(tmp_path), keep=2, milestones=4, full_every=1)
    kept = []
    for step in range(1, 12):
        checkpointer.save(step, state(step))
        kept.append(steps(tmp_path))
    assert kept == [
        [1], [1, 2], [2, 3], [3, 4], [3, 4, 5], [4, 5, 6], [4, 6, 7], [4, 7, 8], [4, 7, 8, 9], [4, 8, 9, 10],
        [4, 8, 10, 11],
    ]  # fmt: skip


def test_what_a_kept_one_refers_to_is_kept(tmp_path):
    live = {"same": torch.ones(10), "changes": torch.zeros(10)}
    checkpointer = Checkpointer(LocalStore(tmp_path), keep=1, milestones=0, full_every=4)
    kept = []
    for step in range(1, 8):
        live["changes"] += 1
        checkpointer.save(step, live)
        kept.append(steps(tmp_path))
        assert_same(load(tmp_path)[0].state, live)
    assert kept == [[1], [1, 2], [1, 3], [1, 4], [5], [5, 6], [5, 7]]


def test_a_broken_checkpoint_does_not_count_as_one_that_is_kept(tmp_path):
    checkpointer = saved(tmp_path, 1, 2, full_every=1)
    (tmp_path / "step-00000002/manifest.json").write_bytes(b"torn")
    checkpointer.save(3, state(3))
    assert steps(tmp_path) == [1, 3]


def test_what_a_newer_release_saved_stays_with_all_that_it_may_refer_to(tmp_path):
    checkpointer = saved(tmp_path, 1, 2, full_every=1, keep=1)
    text = (tmp_path / "step-00000002/manifest.json").read_bytes().partition(b"\n")[0]
    text = text.replace(b'"version":2', b'"version":3')
    seal = b"\nsha256 " + hashlib.sha256(text).hexdigest().encode() + b"\n"
    (tmp_path / "step-00000002/manifest.json").write_bytes(text + seal)
    with pytest.warns(UserWarning, match="NewerCheckpointError: step-00000002: the manifest has version 3: expected"):
        checkpointer.save(3, state(3))
    with pytest.warns(UserWarning, match="older checkpoints could not be removed"):
        checkpointer.save(4, state(4))
    assert steps(tmp_path) == [2, 3, 4]
    assert load(tmp_path)[0].step == 4


def test_a_step_that_is_saved_again_does_not_replace_the_old_one_before_it_is_whole(tmp_path):
    store = Failing(tmp_path)
    checkpointer = Checkpointer(store)
    checkpointer.save(1, state(1))
    store.left = 10
    with pytest.raises(CheckpointError):
        checkpointer.save(1, state(8))
    assert_same(load(tmp_path)[0].state, state(1))
    store.left = float("inf")
    checkpointer.save(1, state(9))
    assert_same(load(tmp_path)[0].state, state(9))
    assert_same(load(tmp_path, step=1)[0].state, state(9))
    assert checkpoints(tmp_path) == ["latest", "step-00000001-r1"]


def test_after_a_rollback_the_run_that_was_left_is_not_loaded_and_goes(tmp_path):
    saved(tmp_path, 1, 2, 3, keep=3, full_every=1)
    checkpointer = Checkpointer(LocalStore(tmp_path), keep=2)
    checkpointer.load(step=1)
    checkpointer.save(2, state(20))
    loaded, _ = load(tmp_path)
    assert loaded.step == 2
    assert_same(loaded.state, state(20))
    assert checkpoints(tmp_path) == ["latest", "step-00000001", "step-00000002-r1"]


def test_that_old_ones_cannot_be_removed_is_no_failure_of_the_save(tmp_path):
    class Stuck(LocalStore):
        def remove(self, directory):
            raise PermissionError(f"cannot remove {directory}")

    checkpointer = Checkpointer(Stuck(tmp_path), keep=1)
    checkpointer.save(1, state(1))
    with pytest.warns(UserWarning, match="older checkpoints could not be removed: .*step-00000001"):
        checkpointer.save(2, state(2))
    assert load(tmp_path)[0].step == 2


@pytest.mark.parametrize("options", [{"keep": 0}, {"milestones": -1}, {"full_every": 0}])
def test_bad_options_are_named(tmp_path, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} = "):
        Checkpointer(LocalStore(tmp_path), **options)
