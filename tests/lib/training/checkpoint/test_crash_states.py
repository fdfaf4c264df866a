"""Whatever a power cut leaves of a save loads as the checkpoint before it or as the new one, under all rules."""

import threading
import warnings

import pytest
import torch
from threeloops.training.checkpoint import Checkpointer, LocalStore, sharded_along
from threeloops.training.checkpoint.crash import EXT4, POSIX, XFS, check, recording


def state(step):
    """One tensor that changes in every step, and one that does not, so that an increment refers to it."""
    return {"changes": torch.full((40,), float(step)), "stays": torch.ones(50), "step": step}


def load(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what was skipped
        return Checkpointer(LocalStore(folder)).load().state


@pytest.mark.parametrize("rules", [POSIX, EXT4, XFS], ids=lambda rules: rules.name)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["save", "save_async"])
@pytest.mark.parametrize(("full_every", "keep"), [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_of_one_process(tmp_path, rules, asynchronous, full_every, keep):
    checkpointer = Checkpointer(LocalStore(tmp_path), full_every=full_every, keep=keep, milestones=0)
    checkpointer.save(1, state(1))
    with recording(tmp_path) as recorder:
        for step in (2, 3, 4):  # the last of them begins a new chain, and older steps go
            if asynchronous:
                checkpointer.save_async(step, state(step))
                checkpointer.wait()
            else:
                checkpointer.save(step, state(step))
            recorder.saved()
    report = check(recorder.record, load, rules, most=400)
    assert report.ok, report
    assert report.states > 30 and report.count("old") and report.count("new")


def test_the_first_save_of_all_is_there_or_not(tmp_path):
    with recording(tmp_path) as recorder:
        Checkpointer(LocalStore(tmp_path / "run" / "checkpoints")).save(1, state(1))
    report = check(recorder.record, lambda folder: load(folder / "run" / "checkpoints"), POSIX)
    assert report.ok and report.all_of_them, report


class OnThreads:
    """Checkpointers of several ranks in one process, so that one record has the operations of all."""

    def __init__(self, folder, ranks):
        self.barrier, self.given = threading.Barrier(ranks, timeout=60), [None] * ranks
        self.members = []
        for rank in range(ranks):
            member = Checkpointer(LocalStore(folder), full_every=2, keep=1, milestones=0)
            member.rank, member.world = rank, ranks
            member._gather = lambda mine, rank=rank: self.gather(rank, mine)
            self.members.append(member)

    def gather(self, rank, mine):
        self.given[rank] = mine
        self.barrier.wait()
        found = list(self.given)
        self.barrier.wait()
        return found

    def save(self, step):
        errors = []

        def run(rank, member):
            try:
                whole = torch.arange(20.0).view(4, 5) + step
                part = sharded_along(0, whole.chunk(len(self.members))[rank], rank, len(self.members))
                member.save(step, {"cut": part, "same": torch.ones(30), "step": step})
            except BaseException as error:
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=run, args=each) for each in enumerate(self.members)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors


@pytest.mark.parametrize(
    ("ranks", "rules"),
    [
        (2, POSIX),
        (2, EXT4),
        (4, EXT4),
        pytest.param(4, POSIX, marks=pytest.mark.slow),  # these rules are tried with 2 ranks, so many ranks with ext4's
    ],
    ids=lambda each: getattr(each, "name", each),
)
def test_of_many_ranks(tmp_path, ranks, rules):
    together = OnThreads(tmp_path, ranks)
    together.save(1)
    with recording(tmp_path) as recorder:
        for step in (2, 3):
            together.save(step)
            recorder.saved()
    report = check(recorder.record, load, rules, most=200)
    assert report.ok, report
    assert torch.equal(load(tmp_path)["cut"], torch.arange(20.0).view(4, 5) + 3)
