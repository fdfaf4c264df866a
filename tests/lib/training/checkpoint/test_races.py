"""A reader beside a writer gets a whole checkpoint, and so it does beside two jobs that save to one folder by mistake.

Each store here calls a hook once in the middle of an operation: so the other job does its part at exactly that moment.
"""

import shutil
import warnings

import pytest
import torch
from threeloops.training.checkpoint import Checkpointer, CheckpointError, LocalStore


class Interrupted(LocalStore):
    """Calls `meanwhile` once: before `before` is called, or after it returned a list."""

    def __init__(self, folder, before, meanwhile):
        super().__init__(folder)
        operation, pending = getattr(super(), before), [meanwhile]

        def interrupted(*arguments):
            if before == "directories":  # the list is old when it is used
                found = operation()
                pending and pending.pop()()
                return found
            pending and pending.pop()()
            return operation(*arguments)

        setattr(self, before, interrupted)


def state(step):
    return {"w": torch.full((3,), float(step))}


def save(checkpointer, *steps):
    for step in steps:
        checkpointer.save(step, state(step))


def load(store):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what was removed in the meantime is not damaged
        loaded = Checkpointer(store).load()
    assert torch.equal(loaded.state["w"], state(loaded.step)["w"]) and loaded.skipped == ()
    return loaded.step


@pytest.mark.parametrize("full_every", [1, 8])
@pytest.mark.parametrize("moment", ["directories", "pointer", "manifest", "size", "read"])
def test_a_reader_lists_again_when_what_it_found_is_removed(tmp_path, moment, full_every):
    writer = Checkpointer(LocalStore(tmp_path), keep=1, milestones=0, full_every=full_every)
    save(writer, 1, 2)
    assert load(Interrupted(tmp_path, moment, lambda: save(writer, 3, 4, 5))) in (2, 5)


def test_a_damaged_checkpoint_is_still_reported(tmp_path):
    save(Checkpointer(LocalStore(tmp_path), keep=9), 1, 2)
    (tmp_path / "step-00000002/manifest.json").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="step-00000002.*Loaded step-00000001 in its place"):
        assert Checkpointer(LocalStore(tmp_path)).load().step == 1


def test_another_job_that_begins_leaves_no_half_of_a_checkpoint_to_commit(tmp_path, monkeypatch):
    ours, attempt = LocalStore(tmp_path), "step-00000001.ours"
    ours.begin(attempt)
    ours.write(attempt, "rank-00000.safetensors", [b"data"])

    def commit_while_it_is_removed(folder, **options):
        (folder / "rank-00000.safetensors").unlink()
        with pytest.raises(FileNotFoundError):
            ours.commit(attempt, b"manifest")
        monkeypatch.undo()
        shutil.rmtree(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", commit_while_it_is_removed)
    LocalStore(tmp_path).begin("step-00000001.theirs")
    assert ours.directories() == []
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.theirs.tmp"]


def test_a_save_keeps_what_another_job_committed_since_it_began(tmp_path):
    other = Checkpointer(LocalStore(tmp_path), keep=2, milestones=0, full_every=1)
    ours = Interrupted(tmp_path, "point", lambda: save(other, 12))
    save(Checkpointer(ours, keep=1, milestones=0, full_every=1), 10)
    assert sorted(ours.directories()) == ["step-00000010", "step-00000012"]


def test_a_save_whose_files_another_job_removes_removes_nothing(tmp_path):
    ours = Checkpointer(LocalStore(tmp_path), keep=9, milestones=0)
    for step in (1, 2):
        ours.save(step, state(1))

    def lose_the_first():
        shutil.rmtree(tmp_path / "step-00000001")

    ours.store = Interrupted(tmp_path, "point", lose_the_first)
    ours.keep = 1
    with pytest.warns(UserWarning, match="step-00000003, or what it refers to, was removed: is another job saving"):
        ours.save(3, state(1))  # refers to the blocks of step 1, as step 2 does
    assert sorted(ours.store.directories()) == ["step-00000002", "step-00000003"]


def test_a_load_that_finds_nothing_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="has none"):
        Checkpointer(LocalStore(tmp_path)).load()
