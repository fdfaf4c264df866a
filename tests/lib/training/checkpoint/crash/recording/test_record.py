"""What a recording sees of ordinary Python code, and that it says so when something passed it by."""

import contextlib
import errno
import gc
import io
import mmap
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import types

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from threeloops.training.checkpoint.crash.model.operations import (
    BadRecord,
    Saved,
    Sync,
    SyncAll,
    Write,
    operation_from_bytes,
)
from threeloops.training.checkpoint.crash.model.states import files_after
from threeloops.training.checkpoint.crash.recording.failures import DiskFull, Failure, ShortWrites, SyncFails
from threeloops.training.checkpoint.crash.recording.record import Escaped, recording

plain = types.SimpleNamespace(rename=os.rename)
"""Not a name of a module, so the recorder does not replace it."""


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "checkpoints"
    path.mkdir()
    (path / "old").write_bytes(b"0123456789")
    return path


def recorded(folder, save):
    """What `save` does, in words, without "the save returned"."""
    with recording(folder) as recorder:
        save(folder)
    assert isinstance(recorder.record.operations[-1], Saved)
    return [str(operation) for operation in recorder.record.operations[:-1]]


def written(folder, save):
    """The writes of `save`: offset and data."""
    with recording(folder) as recorder:
        save(folder)
    return [(each.offset, each.data) for each in recorder.record.operations if isinstance(each, Write)]


def test_writes_are_those_of_the_kernel_so_an_fsync_before_the_flush_syncs_nothing(folder):
    def save(folder):
        with open(folder / "f", "wb") as file:
            file.write(b"abc")
            os.fsync(file.fileno())

    assert recorded(folder, save) == ["create f", "fsync f", "write 3 bytes of f at 0"]


def test_large_writes_pass_the_buffer_and_small_ones_are_joined(folder):
    def save(folder):
        with open(folder / "f", "wb") as file:
            for _ in range(10):
                file.write(b"abc")
            file.write(bytes(200_000))

    assert written(folder, save) == [(0, b"abc" * 10), (30, bytes(200_000))]


@pytest.mark.parametrize(
    ("mode", "save", "expected"),
    [
        ("wb", lambda f: f.write(b"ab"), ["truncate old to 0 bytes", "write 2 bytes of old at 0"]),
        ("w", lambda f: f.write("é"), ["truncate old to 0 bytes", "write 2 bytes of old at 0"]),
        ("ab", lambda f: f.write(b"ab"), ["write 2 bytes of old at 10"]),
        ("a+", lambda f: f.write("ab"), ["write 2 bytes of old at 10"]),
        ("r+b", lambda f: (f.seek(3), f.write(b"ab")), ["write 2 bytes of old at 3"]),
        ("r+b", lambda f: f.truncate(4), ["truncate old to 4 bytes"]),
        ("r+", lambda f: (f.read(2), f.seek(0), f.write("x")), ["write 1 bytes of old at 0"]),
        ("w+b", lambda f: (f.write(b"ab"), f.seek(0)), ["truncate old to 0 bytes", "write 2 bytes of old at 0"]),
        ("r+b", lambda f: (f.seek(6), f.truncate()), ["truncate old to 6 bytes"]),
        ("rb", lambda f: f.read(), []),
    ],
)  # fmt: skip
def test_files_of_every_mode(folder, mode, save, expected):
    def run(folder):
        with open(folder / "old", mode) as file:
            save(file)

    assert recorded(folder, run) == expected


def test_unbuffered_and_line_buffered_files(folder):
    def save(folder):
        with open(folder / "raw", "wb", buffering=0) as file:
            file.write(b"a")
            file.write(memoryview(np.arange(2, dtype=np.int32)))
        with open(folder / "lines", "w", buffering=1) as file:
            file.write("a\nb")
        with open(folder / "new", "x", encoding="utf-16", newline="\r\n") as file:
            file.write("\n")

    assert recorded(folder, save) == [
        "create raw", "write 1 bytes of raw at 0", "write 8 bytes of raw at 1",
        "create lines", "write 3 bytes of lines at 0", "create new", "write 6 bytes of new at 0",
    ]  # fmt: skip


def test_files_behave_as_without_a_recording(folder):
    with recording(folder):
        with open(folder / "f", "w+") as file:
            assert file.mode == "w+" and file.name == folder / "f" and file.writable() and file.readable()
            assert file.write("héllo\n") == 6 and file.tell() == 7
            file.seek(0)
            assert file.readline() == "héllo\n"
            assert isinstance(file, io.TextIOWrapper) and isinstance(file.buffer, io.BufferedRandom)
        with open(folder / "f", "wb") as file:
            assert isinstance(file, io.BufferedWriter) and isinstance(file.raw, io.FileIO) and file.fileno() > 2
        with pytest.raises(FileExistsError):
            (folder / "f").open("x")
        with pytest.raises(FileNotFoundError):
            (folder / "none" / "f").open("w")
        with pytest.raises(IsADirectoryError):
            folder.open("w")
        with pytest.raises(ValueError, match="binary mode"):
            (folder / "f").open("wb", encoding="utf-8")
        with pytest.raises(ValueError, match="unbuffered text"):
            (folder / "f").open("w", buffering=0)
        with pytest.raises(FileNotFoundError):
            os.rename(folder / "none", folder / "f")


def test_functions_of_os(folder):
    def save(folder):
        fd = os.open(folder / "f", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, b"abc")
        os.pwrite(fd, b"XY", 1)
        os.writev(fd, [b"d", b"ef"])
        os.pwritev(fd, [b"Z"], 0)
        os.ftruncate(fd, 4)
        os.posix_fallocate(fd, 0, 8)
        os.posix_fallocate(fd, 0, 2)
        os.fdatasync(fd)
        again = os.dup(fd)
        os.close(fd)
        os.write(again, b"!")
        os.fsync(again)
        os.close(again)
        os.truncate(folder / "f", 2)
        os.link(folder / "f", folder / "g")
        os.symlink("g", folder / "s")
        os.truncate(folder / "s", 1)
        os.mkdir(folder / "d")
        os.rename(folder / "g", folder / "d" / "g")
        os.unlink(folder / "s")
        os.remove(folder / "d" / "g")
        os.rmdir(folder / "d")
        os.sync()

    assert recorded(folder, save) == [
        "create f", "write 3 bytes of f at 0", "write 2 bytes of f at 1", "write 3 bytes of f at 3",
        "write 1 bytes of f at 0", "truncate f to 4 bytes", "truncate f to 8 bytes", "fdatasync f",
        "write 1 bytes of f at 6", "fsync f", "truncate f to 2 bytes", "link g", "symlink s → g",
        "truncate f to 1 bytes", "mkdir d", "rename g → d/g", "unlink s", "unlink d/g", "rmdir d", "sync",
    ]  # fmt: skip


def test_paths_relative_to_an_open_folder_or_to_where_one_is(folder, monkeypatch):
    def save(folder):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        file = os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
        os.write(file, b"a")
        os.close(file)
        os.mkdir("d", dir_fd=fd)
        os.rename("f", "d/f", src_dir_fd=fd, dst_dir_fd=fd)
        os.unlink("old", dir_fd=fd)
        os.fsync(fd)
        os.close(fd)
        monkeypatch.chdir(folder / "d")
        os.replace("f", "../up")
        os.rmdir("../d/")
        monkeypatch.chdir("/")

    assert recorded(folder, save) == [
        "create f", "write 1 bytes of f at 0", "mkdir d", "rename f → d/f", "unlink old", "fsync the folder",
        "rename d/f → up", "rmdir d",
    ]  # fmt: skip


def test_pathlib_shutil_and_tempfile(folder, tmp_path):
    (tmp_path / "source").write_bytes(b"s" * 5)

    def save(folder):
        (folder / "p").write_bytes(b"12")
        (folder / "p").replace(folder / "q")
        (folder / "t").write_text("x")
        (folder / "t").touch()
        (folder / "e").touch()
        shutil.copyfile(tmp_path / "source", folder / "c")
        shutil.move(folder / "c", folder / "m")
        os.makedirs(folder / "a" / "b")
        (folder / "a" / "b" / "x").touch()
        shutil.rmtree(folder / "a")
        with tempfile.NamedTemporaryFile(dir=folder, prefix="n", suffix="n", delete=False) as file:
            file.write(b"n")
            name = os.path.basename(file.name)
        os.rename(folder / name, folder / "named")
        fd, path = tempfile.mkstemp(dir=folder)
        with os.fdopen(fd, "wb") as file:
            file.write(b"m")
        os.link(path, folder / "linked")
        os.unlink(path)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"gone")
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            pathlib.Path(inner, "x").touch()

    words = [word.split()[0] for word in recorded(folder, save)]
    assert (
        words
        == (
            "create write rename create write create create write rename mkdir mkdir create unlink rmdir rmdir "
            "create write rename create write link unlink create write unlink mkdir create unlink rmdir"
        ).split()
    )


def test_a_file_without_a_name_gets_one(folder):
    def save(folder):
        fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY)
        os.write(fd, b"a")
        os.fsync(fd)
        os.link(f"/proc/self/fd/{fd}", folder / "f", src_dir_fd=fd, follow_symlinks=True)
        os.close(fd)

    assert recorded(folder, save) == [
        "create a file without a name", "write 1 bytes of (a file without a name) at 0",
        "fsync (a file without a name)", "link f",
    ]  # fmt: skip


def test_sendfile_and_copies_within_the_kernel(folder):
    def save(folder):
        with open(folder / "old", "rb") as source, open(folder / "f", "wb") as target:
            assert os.sendfile(target.fileno(), source.fileno(), 2, 3) == 3
            assert os.copy_file_range(source.fileno(), target.fileno(), 4, 0, 5) == 4
            assert os.sendfile(target.fileno(), source.fileno(), 10, 3) == 0

    assert written(folder, save) == [(0, b"234"), (5, b"0123")]


def test_other_folders_are_no_part_of_it_and_everything_works_there(folder, tmp_path):
    def save(folder):
        other = tmp_path / "checkpoints-too"
        other.mkdir()
        (other / "f").write_bytes(b"a")
        with open(other / "f", "r+b") as file:
            file.write(b"b")
            os.fsync(file.fileno())
        os.rename(other / "f", other / "g")
        os.unlink(other / "g")
        read, write = os.pipe()
        assert os.write(write, b"x") == 1 and os.read(read, 1) == b"x"
        os.close(read), os.close(write)
        subprocess.run([sys.executable, "-c", ""], check=True)

    assert recorded(folder, save) == []


def test_a_file_that_left_the_folder_is_no_part_of_it_though_the_system_has_the_same_number_for_it(folder, tmp_path):
    def save(folder):
        os.link(folder / "old", tmp_path / "outside")
        os.unlink(folder / "old")
        fd = os.open(tmp_path / "outside", os.O_WRONLY)
        os.write(fd, b"x")
        os.fsync(fd)
        os.close(fd)

    assert recorded(folder, save) == ["unlink old"]


def test_a_symbolic_link_to_the_folder_is_the_folder(folder, tmp_path):
    (tmp_path / "alias").symlink_to(folder)
    assert recorded(tmp_path / "alias", lambda alias: (alias / "f").touch()) == ["create f"]
    assert recorded(folder, lambda _: (tmp_path / "alias" / "g").touch()) == ["create g"]


def test_threads_have_one_order_and_lose_nothing(folder):
    def save(folder):
        def write(n):
            with open(folder / f"f{n}", "wb", buffering=0) as file:
                for i in range(50):
                    file.write(bytes([i]))
                os.fsync(file.fileno())

        threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

    found = recorded(folder, save)
    assert len(found) == 8 * 52
    for n in range(8):
        own = [word for word in found if f" f{n}" in word]
        assert own == [f"create f{n}", *(f"write 1 bytes of f{n} at {i}" for i in range(50)), f"fsync f{n}"]


def test_no_operation_begins_while_another_is_done_and_written_down(folder):
    meeting, met = threading.Barrier(2), []

    class Disk(Failure):
        def bytes_taken(self, size):
            with contextlib.suppress(threading.BrokenBarrierError):
                meeting.wait(timeout=0.1)
                met.append(size)
            return size

    with recording(folder, fail=Disk()):
        threads = [threading.Thread(target=(folder / name).write_bytes, args=(b"x",)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert not met


@pytest.mark.parametrize("name", ["__main__", "a_library"])
def test_what_a_notebook_or_a_library_imported_under_its_own_name_is_recorded(folder, monkeypatch, name):
    """IPython's `open` calls one that it imported when it started, and `atomicwrites` keeps `os.fsync`."""
    notebook = types.ModuleType(name)
    exec("from io import open as io_open\nfrom posix import fsync", vars(notebook))
    monkeypatch.setitem(sys.modules, name, notebook)
    before = dict(vars(notebook))
    with recording(folder) as recorder, notebook.io_open(folder / "a", "wb", buffering=0) as file:
        file.write(b"12")
        notebook.fsync(file.fileno())
    assert [str(each) for each in recorder.record.operations[:3]] == ["create a", "write 2 bytes of a at 0", "fsync a"]
    assert vars(notebook) == before


def test_a_file_that_is_collected_is_flushed_and_one_that_lives_on_works_after_the_recording(folder):
    kept = []

    def save(folder):
        open(folder / "f", "wb").write(b"collected")  # noqa: SIM115
        gc.collect()
        kept.append(open(folder / "later", "wb"))  # noqa: SIM115

    with pytest.warns(ResourceWarning):
        found = recorded(folder, save)
    assert found == ["create f", "write 9 bytes of f at 0", "create later"]
    kept[0].write(b"after")
    kept[0].close()
    assert (folder / "later").read_bytes() == b"after"


def test_afterwards_everything_is_as_it_was(folder):
    names = ["open", "write", "rename", "replace", "unlink", "remove", "fsync", "mkdir", "link", "truncate", "sync"]
    before = [getattr(os, name) for name in names], open, io.open, tempfile._TemporaryFileCloser.close.__defaults__
    with pytest.raises(KeyError), recording(folder):
        raise KeyError
    after = [getattr(os, name) for name in names], open, io.open, tempfile._TemporaryFileCloser.close.__defaults__
    assert before == after
    assert recorded(folder, lambda folder: None) == []


def test_one_recording_at_a_time_and_of_a_folder(folder):
    with recording(folder), pytest.raises(RuntimeError, match="one at a time"), recording(folder):
        pass
    with pytest.raises(NotADirectoryError, match="expected a folder that exists"), recording(folder / "old"):
        pass
    assert recorded(folder, lambda folder: None) == []


def test_the_record_begins_with_what_was_there(folder):
    (folder / "d").mkdir()
    os.link(folder / "old", folder / "d" / "too")
    (folder / "s").symlink_to("old")
    with recording(folder) as recorder:
        (folder / "d" / "too").write_bytes(b"new")
    assert files_after(recorder.record, 0) == {"d": None, "d/too": b"0123456789", "old": b"0123456789", "s": "old"}
    assert files_after(recorder.record) == {"d": None, "d/too": b"new", "old": b"new", "s": "old"}


# What passes the recorder by


def torch_by_path(folder):
    torch.save({"a": torch.arange(100)}, folder / "model.pt")


def memory_map(folder):
    with open(folder / "old", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[3:5] = b"XY"


def numpy_in_c(folder):
    with open(folder / "old", "r+b") as file:
        np.arange(4, dtype=np.uint8).tofile(file)


def other_process(folder):
    subprocess.run([sys.executable, "-c", f"open({str(folder / 'p')!r}, 'w').write('abc')"], check=True)


def renamed_before_it_was_replaced(folder):
    plain.rename(folder / "old", folder / "new")


def from_outside(folder):
    os.rename(folder.parent / "outside", folder / "in")


@pytest.mark.parametrize(
    ("save", "said"),
    [
        (torch_by_path, r"`model.pt` has \d+ bytes and was never created"),
        (memory_map, "`old` has 10 bytes, of which 2 were not recorded"),
        (numpy_in_c, "`old` has 10 bytes, of which 4 were not recorded"),
        (other_process, "`p` has 3 bytes and was never created"),
        (renamed_before_it_was_replaced, "`new` has 10 bytes and was never created; `old` is gone"),
        (from_outside, "`in` has 3 bytes and was never created"),
    ],
)
def test_what_was_not_recorded_is_named_with_the_way_out(folder, save, said):
    (folder.parent / "outside").write_bytes(b"123")
    with pytest.raises(Escaped, match=f"{said}.*with open.path, 'wb'. as f: torch.save"):
        recorded(folder, save)


def map_set_and_reset(folder):
    with open(folder / "old", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[3] = ord("X")
        mapped[3] = ord("3")


def out_and_back(folder):
    os.rename(folder / "old", folder.parent / "away")
    os.rename(folder.parent / "away", folder / "old")


def same_bytes_in_place(folder):
    subprocess.run([sys.executable, "-c", f"open({str(folder / 'old')!r}, 'r+').write('0123456789')"], check=True)


def same_bytes_replaced(folder):
    new, old = str(folder / "new"), str(folder / "old")
    code = f"import os; open({new!r}, 'w').write('0123456789'); os.replace({new!r}, {old!r})"
    subprocess.run([sys.executable, "-c", code], check=True)


def same_bytes_before_a_recorded_write(folder):
    same_bytes_in_place(folder)
    with open(folder / "old", "ab") as file:
        file.write(b"x")


def file_that_came_and_went(folder):
    path = str(folder / "d")
    subprocess.run([sys.executable, "-c", f"import os; os.mkdir({path!r}); os.rmdir({path!r})"], check=True)


def tensors_by_safetensors(folder):
    safetensors.torch.save_file({"w": torch.ones(1000)}, folder / "frozen.safetensors")


def tensors_by_torch(folder):
    torch.save({"w": torch.ones(1000)}, folder / "frozen.pt")


@pytest.mark.parametrize(
    ("save", "said"),
    [
        (map_set_and_reset, "by its times `old` changed when nothing was recorded"),
        (out_and_back, "by its times `old`, `the folder itself` changed"),
        (same_bytes_in_place, "by its times `old` changed"),
        (same_bytes_replaced, "`old` is another file of the same content"),
        (same_bytes_before_a_recorded_write, "by its times `old` changed"),
        (file_that_came_and_went, "by its times `the folder itself` changed"),
        (tensors_by_safetensors, "frozen.safetensors"),
        (tensors_by_torch, "`frozen.pt`"),
    ],
)
def test_a_change_that_leaves_the_same_content_is_noticed_too(folder, save, said):
    """It is not synced, so a verdict without it would be a false OK."""
    if save in (tensors_by_safetensors, tensors_by_torch):
        save(folder)
    with pytest.raises(Escaped, match=said):
        recorded(folder, save)


def test_a_file_that_torch_wrote_by_path_and_python_renamed_escaped(folder):
    def save(folder):
        torch.save({"a": torch.ones(3)}, folder / "c.tmp")
        os.replace(folder / "c.tmp", folder / "c")

    with pytest.raises(Escaped, match="by the record there is no c.tmp.*with open.path, 'wb'. as f: torch.save"):
        recorded(folder, save)


def test_modes_and_times_may_change(folder):
    def save(folder):
        os.chmod(folder / "old", 0o600)
        os.utime(folder / "old", (1, 2))
        shutil.copystat(folder.parent, folder)
        with open(folder / "old", "rb") as file:
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())

    assert recorded(folder, save) == ["fsync old"]


def test_a_link_to_data_outside_of_the_folder_that_changed_escaped(folder, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "f").write_bytes(b"1")
    (folder / "link").symlink_to(tmp_path / "data")
    assert recorded(folder, lambda folder: (folder / "other").symlink_to(tmp_path / "data" / "f")) == [
        f"symlink other → {tmp_path / 'data' / 'f'}"
    ]
    with pytest.raises(Escaped, match="`link` leads to .*data, outside of the folder, which changed"):
        recorded(folder, lambda folder: (tmp_path / "data" / "f").write_bytes(b"2"))


def test_a_link_that_leads_nowhere_outside_of_the_folder_is_a_link(folder, tmp_path):
    found = recorded(folder, lambda folder: os.symlink(tmp_path / "missing", folder / "link"))
    assert found == [f"symlink link → {tmp_path / 'missing'}"]


def test_a_link_by_an_absolute_path_leads_into_the_copy_and_not_to_the_original(folder, tmp_path):
    """Else each state would load from the original, which is whole."""
    (tmp_path / "alias").symlink_to(folder)
    (folder / "d").mkdir()
    (folder / "before").symlink_to(tmp_path / "alias" / "d")

    def save(folder):
        (folder / "d" / "f").symlink_to(folder / "old")

    with recording(folder) as recorder:
        save(folder)
    files = files_after(recorder.record)
    assert files["before"] == "d" and files["d/f"] == "../old"


def test_a_module_that_imported_a_function_during_a_recording_has_the_plain_one_afterwards(folder, monkeypatch):
    module = types.ModuleType("saver")
    monkeypatch.setitem(sys.modules, "saver", module)
    plain_fsync = os.fsync
    with recording(folder):
        exec("from os import fsync", vars(module))
    assert module.fsync is plain_fsync is os.fsync


def test_torch_save_into_a_file_object_is_recorded(folder):
    def save(folder):
        with open(folder / "model.pt", "wb") as file:
            torch.save({"a": torch.arange(1000)}, file)

    data = b"".join(data for _, data in written(folder, save))
    assert torch.load(io.BytesIO(data))["a"].tolist() == list(range(1000))


def test_a_forked_process_cannot_save_unnoticed(folder):
    with recording(folder) as recorder:
        child = os.fork()
        if not child:
            try:
                with open(folder / "old", "ab") as file:
                    os.fsync(file.fileno())
            except Escaped as error:
                os._exit(7 if "a forked process did `fsync old`" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(recorder.record.operations) == 1


def test_an_error_of_the_save_comes_through_and_is_not_hidden_by_what_escaped(folder):
    with pytest.raises(ZeroDivisionError), recording(folder):
        torch_by_path(folder)
        1 / 0  # noqa: B018


# Disks that fail


def test_a_full_disk_takes_what_fits_and_then_says_so(folder):
    with recording(folder, fail=DiskFull(after_bytes=5)) as recorder:
        fd = os.open(folder / "f", os.O_WRONLY | os.O_CREAT)
        assert os.write(fd, b"abc") == 3 and os.write(fd, b"def") == 2
        with pytest.raises(OSError, match="No space left") as error:
            os.write(fd, b"f")
        assert error.value.errno == errno.ENOSPC and os.write(fd, b"") == 0
        os.close(fd)
        with pytest.raises(OSError, match="No space left"):
            (folder / "g").write_bytes(b"x")
        (folder.parent / "elsewhere").write_bytes(b"there is room")
    assert files_after(recorder.record)["f"] == b"abcde" == (folder / "f").read_bytes()


def test_short_writes_are_continued_by_python_and_not_by_the_kernel(folder):
    with recording(folder, fail=ShortWrites(most=4)) as recorder:
        (folder / "f").write_bytes(b"0123456789")
        with open(folder / "g", "wb", buffering=0) as file:
            assert file.write(b"0123456789") == 4
    assert [len(each.data) for each in recorder.record.operations if isinstance(each, Write)] == [4, 4, 2, 4]


@pytest.mark.parametrize(("flag", "sync"), [(os.O_SYNC, "fsync f"), (os.O_DSYNC, "fdatasync f")])
def test_a_file_that_was_opened_to_sync_each_write_does_so(folder, flag, sync):
    def save(folder):
        fd = os.open(folder / "f", os.O_WRONLY | os.O_CREAT | flag)
        os.write(fd, b"abc")
        os.pwrite(fd, b"d", 3)
        os.close(fd)

    wrote = ["write 3 bytes of f at 0", sync, "write 1 bytes of f at 3", sync]
    assert recorded(folder, save) == ["create f", *wrote]


def test_an_fsync_that_fails_syncs_nothing_and_neither_do_those_after_it(folder):
    with recording(folder, fail=SyncFails(at=1)) as recorder:
        with open(folder / "f", "wb") as file:
            os.fsync(file)
            with pytest.raises(OSError) as error:
                os.fsync(file.fileno())
            assert error.value.errno == errno.EIO
            os.fsync(file.fileno())
        os.sync()
    assert sum(isinstance(each, Sync | SyncAll) for each in recorder.record.operations) == 1


# Over a wire


def test_operations_cross_a_wire(folder):
    with recording(folder) as recorder:
        for step in range(3):
            (folder / f"step-{step}").mkdir()
            (folder / f"step-{step}" / "x").write_bytes(os.urandom(5000))
            os.link(folder / "old", folder / f"link-{step}")
        os.symlink("step-2", folder / "latest")
        os.sync()
    done = [each for each in recorder.record.operations if not isinstance(each, Saved)]
    assert [operation_from_bytes(each.to_bytes()) for each in done] == done


WRITE, RENAME, SYNC, CUT = (
    ["Write", 1, "a", 0, b"x"],
    ["Rename", "a", "d/b"],
    ["Sync", 1, "a", False],
    ["Truncate", 1, "a", 3],
)


def spoiled(operation, place, value):
    """An operation with something changed on its way."""
    return msgspec.msgpack.encode([*operation[:place], value, *operation[place + 1 :]])


@pytest.mark.parametrize("operation", [WRITE, RENAME, SYNC, CUT])
def test_an_operation_that_nothing_spoiled_is_read(operation):
    assert type(operation_from_bytes(msgspec.msgpack.encode(operation))).__name__ == operation[0]


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../x", "a//b", "./a", "a/.", "", "a\0b", "x" * 2000, 7, None]
)
@pytest.mark.parametrize(("operation", "place"), [(WRITE, 2), (RENAME, 1), (RENAME, 2)])
def test_paths_stay_inside_the_folder(path, operation, place):
    with pytest.raises(BadRecord):
        operation_from_bytes(spoiled(operation, place, path))


@pytest.mark.parametrize(
    "data",
    [
        spoiled(WRITE, 3, -1), spoiled(WRITE, 3, 1 << 40), spoiled(WRITE, 4, "text"), spoiled(WRITE, 1, -1),
        spoiled(WRITE, 1, 1 << 40), spoiled(CUT, 3, 1 << 40), spoiled(CUT, 3, -1), spoiled(WRITE, 0, "Explode"),
        spoiled(SYNC, 3, "no"),
    ],
)  # fmt: skip
def test_sizes_numbers_and_kinds_are_checked(data):
    with pytest.raises(BadRecord):
        operation_from_bytes(data)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"[" * 10_000, b"\x91" * 10_000, bytes(100), b"\x90", None, 7, "Write"])
def test_what_is_no_operation_is_refused(data):
    with pytest.raises(BadRecord, match="operation"):
        operation_from_bytes(data)


def test_nobody_but_a_test_says_that_a_save_returned():
    with pytest.raises(BadRecord, match="only a test"):
        operation_from_bytes(Saved().to_bytes())
