"""Saves that are right pass, saves that are known to be wrong do not, and the report says what is missing."""

import contextlib
import io
import os
import pickle
import re
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from threeloops.training.checkpoint.crash import (
    EXT4,
    POSIX,
    XFS,
    BadRecord,
    DiskFull,
    Record,
    ShortWrites,
    SyncFails,
    check,
    crash_states,
    recording,
)
from threeloops.training.checkpoint.crash.model.operations import Remove, Saved

ALL = (POSIX, EXT4, XFS)


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write(path, value, synced=True):
    with open(path, "wb") as file:
        pickle.dump(value, file)
        file.flush()
        if synced:
            os.fsync(file.fileno())


def value(n):
    """A value of a few sectors that differs in each."""
    return [n] * 300 + [bytes([n]) * 700]


def load_file(folder):
    return pickle.loads((folder / "latest").read_bytes())


def load_step(folder):
    """By a pointer."""
    return pickle.loads((folder / (folder / "pointer").read_text() / "data").read_bytes())


# Right


def replace(folder, step):
    write(folder / "tmp", value(step))
    os.replace(folder / "tmp", folder / "latest")
    sync(folder)


def replace_with_pathlib(folder, step):
    with (folder / f"tmp-{step}").open("wb") as file:
        file.write(pickle.dumps(value(step)))
        file.flush()
        os.fsync(file)
    (folder / f"tmp-{step}").replace(folder / "latest")
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def sync_everything(folder, step):
    write(folder / "tmp", value(step), synced=False)
    os.sync()
    os.rename(folder / "tmp", folder / "latest")
    os.sync()


def step_folder(folder, step):
    new = folder / f"tmp-{step}"
    new.mkdir()
    write(new / "data", value(step))
    sync(new)
    new.rename(folder / f"step-{step}")
    sync(folder)
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        file.write(f"step-{step}")
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, folder / "pointer")
    sync(folder)


def link_and_pointer(folder, step):
    (folder / f"step-{step}").mkdir()
    fd, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(fd, "wb") as file:
        file.write(pickle.dumps(value(step)))
        file.flush()
        os.fdatasync(file.fileno())
    os.link(name, folder / f"step-{step}" / "data")
    os.unlink(name)
    sync(folder / f"step-{step}")
    sync(folder)
    (folder / "p").write_text(f"step-{step}")
    sync(folder / "p")
    os.replace(folder / "p", folder / "pointer")
    sync(folder)


def shorter_and_shorter(folder, step):
    """Also from torch, whose many small writes Python's buffer joins."""
    with open(folder / "tmp", "wb") as file:
        torch.save(value(step), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "tmp", folder / "latest")
    sync(folder)


RIGHT = [
    (replace, load_file), (replace_with_pathlib, load_file), (sync_everything, load_file), (step_folder, load_step),
    (link_and_pointer, load_step),
    (shorter_and_shorter, lambda folder: torch.load(folder / "latest", weights_only=True)),
]  # fmt: skip


def explored(folder, save, load, rules=POSIX, saves=2, **more):
    """`save` again over what it saved before, some times."""
    folder.mkdir(exist_ok=True)
    save(folder, 1)
    with recording(folder) as recorder:
        for step in range(2, 2 + saves):
            save(folder, step)
            recorder.saved()
    return check(recorder.record, load, rules, **more)


@pytest.mark.parametrize("rules", ALL, ids=lambda rules: rules.name)
@pytest.mark.parametrize(("save", "load"), RIGHT, ids=lambda each: getattr(each, "__name__", "") or None)
def test_right_saves_survive_every_crash(tmp_path, save, load, rules):
    report = explored(tmp_path / "f", save, load, rules)
    assert report.ok, report
    assert report.count("old") and report.count("new") and report.all_of_them
    assert report.states == report.count("old") + report.count("new")


# Wrong


def in_place(folder, step):
    write(folder / "latest", value(step))
    sync(folder)


def rename_before_fsync(folder, step):
    write(folder / "tmp", value(step), synced=False)
    os.replace(folder / "tmp", folder / "latest")
    sync(folder)


def fsync_before_flush(folder, step):
    with open(folder / "tmp", "wb") as file:
        pickle.dump(value(step), file)
        os.fsync(file.fileno())
    os.replace(folder / "tmp", folder / "latest")
    sync(folder)


def no_fsync_of_the_folder(folder, step):
    write(folder / "tmp", value(step))
    os.replace(folder / "tmp", folder / "latest")


def unlink_before_rename(folder, step):
    write(folder / "tmp", value(step))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder / "latest")
    os.rename(folder / "tmp", folder / "latest")
    sync(folder)


def fsync_of_the_wrong_file(folder, step):
    write(folder / "tmp", value(step), synced=False)
    if (folder / "latest").exists():
        sync(folder / "latest")
    os.replace(folder / "tmp", folder / "latest")
    sync(folder)


def pointer_before_data(folder, step):
    (folder / f"step-{step}").mkdir()
    write(folder / "p", f"step-{step}")
    (folder / "p").write_text(f"step-{step}")
    sync(folder / "p")
    os.replace(folder / "p", folder / "pointer")
    sync(folder)
    write(folder / f"step-{step}" / "data", value(step))
    sync(folder / f"step-{step}")


def pointer_before_the_folder_is_synced(folder, step):
    (folder / f"step-{step}").mkdir()
    write(folder / f"step-{step}" / "data", value(step))
    (folder / "p").write_text(f"step-{step}")
    sync(folder / "p")
    os.replace(folder / "p", folder / "pointer")
    sync(folder)


def step_folder_not_synced_before_its_rename(folder, step):
    new = folder / f"tmp-{step}"
    new.mkdir()
    write(new / "data", value(step))
    new.rename(folder / f"step-{step}")
    sync(folder)
    (folder / "p").write_text(f"step-{step}")
    sync(folder / "p")
    os.replace(folder / "p", folder / "pointer")
    sync(folder)


def temporary_name_used_again(folder, step):
    """Both the step's data and the pointer are written under one temporary name, with one fsync at the end."""
    (folder / f"step-{step}").mkdir()
    write(folder / "tmp", value(step), synced=False)
    os.replace(folder / "tmp", folder / f"step-{step}" / "data")
    (folder / "tmp").write_text(f"step-{step}")
    sync(folder / "tmp")
    sync(folder / f"step-{step}")
    sync(folder)
    os.replace(folder / "tmp", folder / "pointer")
    sync(folder)


def pointer_overwritten(folder, step):
    new = folder / f"step-{step}"
    new.mkdir()
    write(new / "data", value(step))
    sync(new)
    sync(folder)
    (folder / "pointer").write_text(f"step-{step}")
    sync(folder / "pointer")
    sync(folder)


WRONG = [
    (in_place, load_file, ALL, "nothing was lost: a kill is enough"),
    (rename_before_fsync, load_file, (POSIX, XFS), "no fsync of `tmp` after it was written"),
    (fsync_before_flush, load_file, (POSIX, XFS), "no fsync of `tmp` .*its fsync, .*came too early"),
    (no_fsync_of_the_folder, load_file, ALL, "no fsync of the folder after `rename tmp → latest`"),
    (unlink_before_rename, load_file, ALL, "nothing was lost: a kill is enough"),
    (fsync_of_the_wrong_file, load_file, (POSIX, XFS), "no fsync of `tmp` after it was written"),
    (pointer_before_data, load_step, ALL, "nothing was lost: a kill is enough"),
    (pointer_before_the_folder_is_synced, load_step, (POSIX,), "no fsync of the folder `step-2` after `create"),
    (step_folder_not_synced_before_its_rename, load_step, (POSIX,), "no fsync of the folder `tmp-2` after `create"),
    (temporary_name_used_again, load_step, ALL, "no fsync of `tmp` after it was written"),
    (pointer_overwritten, load_step, ALL, "nothing was lost: a kill is enough"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("save", "load", "caught_by", "cause"), WRONG, ids=lambda each: getattr(each, "__name__", None)
)
def test_wrong_saves_are_caught_and_the_first_story_names_the_step(tmp_path, save, load, caught_by, cause):
    for rules in ALL:
        report = explored(tmp_path / rules.name, save, load, rules)
        assert report.ok == (rules not in caught_by), f"{rules.name}: {report}"
        if rules in caught_by:
            assert re.search(cause, report.bad[0].state.cause), f"{rules.name}: {report}"
            assert re.search(cause, str(report))


def test_the_first_bad_state_has_the_fewest_losses(tmp_path):
    report = explored(tmp_path / "f", no_fsync_of_the_folder, load_file, saves=3)
    losses = [len(each.state.losses) for each in report.bad]
    assert losses == sorted(losses) and losses[0] == 1 and losses[-1] > 1
    assert {each.verdict for each in report.bad} == {"lost"} and report.count("broken") == 0
    assert report.bad[0].what == "save 1 had returned, and the value of before it was loaded"


def test_the_report_counts_by_crash_point(tmp_path):
    report = explored(tmp_path / "f", rename_before_fsync, load_file, saves=1)
    rename, returned = 2, 4
    assert {point for point, each in report.by_point.items() if each["broken"]} == {rename, returned}
    assert report.by_point[-1] == {"old": 1} and report.by_point[0] == {"old": 1}
    assert sum(sum(each.values()) for each in report.by_point.values()) == report.states
    assert "broken" in str(report) and "old" in str(report) and "POSIX" in str(report)


def test_several_saves_must_not_fall_back_behind_the_last_that_returned(tmp_path):
    def every_other_time(folder, step):
        (replace if step % 2 else no_fsync_of_the_folder)(folder, step)

    report = explored(tmp_path / "f", every_other_time, load_file, saves=4)
    assert {found.verdict for found in report.bad} == {"lost"}
    assert {found.state.saves for found in report.bad} == {1, 3}


# What a load may do


def test_nothing_saved_yet_is_a_value_too(tmp_path):
    def found(folder, save, load):
        folder.mkdir()
        with recording(folder) as recorder:
            save(folder, 1)
        return check(recorder.record, load)

    assert found(tmp_path / "a", replace, load_file).ok
    report = found(tmp_path / "b", no_fsync_of_the_folder, load_file)
    assert {each.verdict for each in report.bad} == {
        "lost"
    } and "save 1 had returned, and load raised FileNotFoundError" in str(report)
    report = found(tmp_path / "c", rename_before_fsync, load_file)
    assert {each.verdict for each in report.bad} == {"broken"} and "load raised EOFError" in str(report)

    def none_or_value(folder):
        return load_file(folder) if (folder / "latest").exists() else None

    assert found(tmp_path / "d", replace, none_or_value).ok


def test_a_load_that_falls_back_is_right_though_the_pointer_is_wrong(tmp_path):
    def newest_that_can_be_read(folder):
        for path in sorted(folder.glob("step-*"), reverse=True):
            with contextlib.suppress(Exception):
                return pickle.loads((path / "data").read_bytes())
        raise LookupError("no checkpoint")

    assert not explored(tmp_path / "a", pointer_overwritten, load_step).ok
    assert explored(tmp_path / "b", pointer_overwritten, newest_that_can_be_read).ok


def test_an_error_that_is_no_exception_is_an_error_too(tmp_path):
    class Strange(BaseException):
        pass

    def load(folder):
        try:
            return load_file(folder)
        except Exception:
            raise Strange("torch's CheckpointException is one") from None

    report = explored(tmp_path, rename_before_fsync, load)
    assert report.count("broken") and "load raised Strange" in report.bad[0].what


def test_values_may_be_given_and_compared_by_the_caller(tmp_path):
    known = [value(1), value(2)]
    assert explored(tmp_path / "a", replace, load_file, saves=1, values=known).ok
    report = explored(tmp_path / "b", replace, load_file, saves=1, values=[value(7), value(2)])
    assert {each.verdict for each in report.bad} == {"broken"}
    assert explored(tmp_path / "c", replace, load_file, saves=1, same=lambda one, other: one[0] == other[0]).ok


def test_tensors_and_arrays_are_compared_element_by_element(tmp_path):
    def save(folder, step):
        state = {"w": torch.full((3, 2), float(step)), "n": [np.arange(step), (step, "x")]}
        buffer = io.BytesIO()
        torch.save(state, buffer)
        (folder / "tmp").write_bytes(buffer.getvalue())
        sync(folder / "tmp")
        os.replace(folder / "tmp", folder / "latest")
        sync(folder)

    def load(folder):
        return torch.load(folder / "latest", weights_only=False)

    assert explored(tmp_path / "a", save, load).ok

    def wrong_type(folder):
        state = load(folder)
        return {**state, "w": state["w"].double()} if (folder / "tmp").exists() else state

    assert not explored(tmp_path / "b", save, wrong_type).ok


def test_a_load_may_change_its_folder(tmp_path):
    def tidy(folder):
        for path in folder.glob("tmp*"):
            path.unlink()
        found = load_file(folder)
        (folder / "latest").unlink()
        return found

    assert explored(tmp_path / "f", replace, tidy).ok


def test_a_save_that_cannot_be_loaded_even_without_a_crash_or_that_changes_nothing_is_no_test(tmp_path):
    def junk(folder, step):
        (folder / "latest").write_bytes(b"junk" if step > 1 else pickle.dumps(1))

    with pytest.raises(ValueError, match="save 1 left cannot be loaded, without any crash: UnpicklingError"):
        explored(tmp_path / "a", junk, load_file)
    with pytest.raises(ValueError, match="save 2 saved the value that save 1 had saved"):
        explored(tmp_path / "b", lambda folder, step: replace(folder, min(step, 2)), load_file)


def test_an_impossible_record_is_refused():
    with pytest.raises(BadRecord, match="there is no f"):
        check(Record([], [Remove("f"), Saved()]), load_file)


# Disks that fail


@pytest.mark.parametrize("room", [0, 1, 600, 1000])
def test_after_a_full_disk_the_old_value_is_there_in_every_state(tmp_path, room):
    replace(tmp_path, 1)
    with pytest.raises(OSError, match="No space"), recording(tmp_path, fail=DiskFull(after_bytes=room)) as recorder:
        replace(tmp_path, 2)
    assert not any(isinstance(each, Saved) for each in recorder.record.operations), "it did not return"
    report = check(recorder.record, load_file)
    assert report.ok and report.count("old") == report.states


def test_a_save_that_fails_at_its_end_may_leave_the_new_value(tmp_path):
    replace(tmp_path, 1)
    with pytest.raises(OSError, match="Input/output"), recording(tmp_path, fail=SyncFails(at=1)) as recorder:
        replace(tmp_path, 2)
    assert check(recorder.record, load_file, values=[value(1), value(2)]).ok
    assert not check(recorder.record, load_file).ok


def test_an_fsync_that_is_tried_again_is_an_fsync_that_is_missing(tmp_path):
    """After it has failed the kernel takes the data for written."""

    def stubborn(folder, step):
        with open(folder / "tmp", "wb") as file:
            pickle.dump(value(step), file)
            file.flush()
            try:
                os.fsync(file.fileno())
            except OSError:
                os.fsync(file.fileno())
                os.sync()
        os.replace(folder / "tmp", folder / "latest")
        sync(folder)

    stubborn(tmp_path, 1)
    with recording(tmp_path, fail=SyncFails(at=0)) as recorder:
        stubborn(tmp_path, 2)
    report = check(recorder.record, load_file)
    assert "no fsync of `tmp` after it was written" in report.bad[0].state.cause


def test_a_value_must_not_come_back(tmp_path):
    replace(tmp_path, 1)
    with recording(tmp_path) as recorder:
        for step in (2, 1):
            replace(tmp_path, step)
            recorder.saved()
    with pytest.raises(ValueError, match="save 2 saved the value that was there before all saves"):
        check(recorder.record, load_file)


def test_a_load_may_remove_its_folder(tmp_path):
    def load(folder):
        found = load_file(folder)
        shutil.rmtree(folder)
        return found

    assert explored(tmp_path, replace, load).ok


def test_a_failed_fsync_that_is_swallowed_is_an_fsync_that_is_missing(tmp_path):
    def careless(folder, step):
        with open(folder / "tmp", "wb") as file:
            pickle.dump(value(step), file)
            file.flush()
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())
        os.replace(folder / "tmp", folder / "latest")
        sync(folder)

    careless(tmp_path, 1)
    with recording(tmp_path, fail=SyncFails(at=0)) as recorder:
        careless(tmp_path, 2)
    report = check(recorder.record, load_file)
    assert "no fsync of `tmp` after it was written" in report.bad[0].state.cause


def test_a_save_that_forgets_short_writes_leaves_what_cannot_be_loaded(tmp_path):
    def with_os_write(folder, step):
        fd = os.open(folder / "tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(fd, pickle.dumps(value(step)))
        os.fsync(fd)
        os.close(fd)
        os.replace(folder / "tmp", folder / "latest")
        sync(folder)

    assert explored(tmp_path, with_os_write, load_file).ok
    with recording(tmp_path, fail=ShortWrites(most=100)) as recorder:
        with_os_write(tmp_path, 9)
    with pytest.raises(ValueError, match="cannot be loaded, without any crash"):
        check(recorder.record, load_file)


# Speed


def test_a_thousand_small_states_a_second(tmp_path):
    """Measured on one core: 4,500 a second. A machine that is busy may take several times as long."""
    replace(tmp_path, 1)
    with recording(tmp_path) as recorder:
        for n in range(4):
            write(tmp_path / f"f{n}", n, synced=False)
        replace(tmp_path, 2)
    started = time.process_time()
    report = check(recorder.record, load_file, most=4096)
    seconds = time.process_time() - started
    assert report.states > 500 and report.states / seconds > 1000 / 3
    assert len(crash_states(recorder.record).states) == report.states


def test_folders_of_states_are_gone_afterwards(tmp_path):
    seen = []

    def load(folder):
        seen.append(folder)
        return load_file(folder)

    explored(tmp_path / "f", replace, load)
    assert seen and not any(Path(each).exists() for each in seen)
