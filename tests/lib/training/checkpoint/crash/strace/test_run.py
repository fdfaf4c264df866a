"""Records of system calls: those of the Python recorder where that sees everything, and of native code too."""

import ctypes
import mmap
import os
import re
import sqlite3
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import torch
from threeloops.training.checkpoint.crash import Escaped, check, record_save, recording, strace_works
from threeloops.training.checkpoint.crash.model.operations import Write
from threeloops.training.checkpoint.crash.strace import run
from threeloops.training.checkpoint.crash.strace.kernel import Kernel
from threeloops.training.checkpoint.crash.strace.trace import calls

sys.path.insert(0, str(Path(__file__).parents[1] / "recording"))
import test_strace as idioms

pytestmark = pytest.mark.skipif(not strace_works(), reason="strace is not installed or may not trace here")


def words(record):
    return [str(operation) for operation in record.operations]


def many_calls(folder):
    fd = os.open(folder / "f", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"abc")
    os.lseek(fd, 1, os.SEEK_SET)
    os.read(fd, 1)
    os.write(fd, b"d")
    again = os.dup(fd)
    os.close(fd)
    os.writev(again, [b"e", b"fg"])
    os.pwritev(again, [b"h", b"i"], 20)
    os.ftruncate(again, 21)
    os.posix_fallocate(again, 0, 50)
    os.fdatasync(again)
    other = os.open(folder / "g", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DSYNC)
    os.write(other, b"1")
    os.write(other, b"2")
    third = os.open(folder / "i", os.O_WRONLY | os.O_CREAT)
    os.sendfile(third, again, 2, 3)
    os.write(third, b"3")
    os.copy_file_range(again, fd := os.open(folder / "h", os.O_WRONLY | os.O_CREAT), 4, 0, 5)
    os.close(fd)
    os.unlink(folder / "h")
    os.chdir(folder)
    os.mkdir("d")
    os.rename("g", "d/g")
    os.symlink(folder / "d", "s")
    os.link("s/g", "l")
    os.truncate("i", 1)
    os.chdir("/")


def nameless(folder):
    fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY)
    os.write(fd, b"a")
    os.fsync(fd)
    os.link(f"/proc/self/fd/{fd}", folder / "f", src_dir_fd=fd, follow_symlinks=True)
    os.write(fd, b"b")
    os.close(fd)


SAVES = [*idioms.IDIOMS, many_calls, nameless]


def each_in_a_folder(folder):
    for save in SAVES:
        (folder / save.__name__).mkdir()
        save(folder / save.__name__)


def test_the_record_is_that_of_the_python_recorder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the save changes the folder of this process, and this brings it back
    for name in ("by_python", "by_strace"):
        (tmp_path / name).mkdir()
    with recording(tmp_path / "by_python") as recorder:
        each_in_a_folder(tmp_path / "by_python")
    found, expected = words(record_save(tmp_path / "by_strace", each_in_a_folder)), words(recorder.record)
    random = re.compile("tmp[a-z0-9_]{8}")  # names of tempfile
    assert [random.sub("tmp", word) for word in found] == [random.sub("tmp", word) for word in expected]
    assert len(found) > 100


def replaced(folder, write):
    write(folder / "tmp")
    os.replace(folder / "tmp", folder / "model")


def torch_by_path(folder, step):
    replaced(folder, lambda path: torch.save({"w": torch.full((500,), float(step))}, path))


def by_safetensors(folder, step):
    replaced(folder, lambda path: safetensors.torch.save_file({"w": torch.full((500,), float(step))}, path))


def by_another_process(folder, step):
    code = f"import numpy; numpy.full(500, {step}).tofile({str(folder / 'tmp')!r})"
    replaced(folder, lambda path: subprocess.run([sys.executable, "-c", code], check=True))


@pytest.mark.parametrize("save", [torch_by_path, by_safetensors, by_another_process])
def test_native_code_and_other_processes_are_recorded_and_judged(tmp_path, save):
    save(tmp_path, 1)
    report = check(record_save(tmp_path, save, 2), lambda folder: (folder / "model").read_bytes(), most=200)
    assert report.count("broken") and report.count("lost"), "it has no fsync"


def past_the_page_cache(folder, step, flags, sync):
    """Write 8 KiB from aligned memory, of which one byte in the last block differs between steps."""
    aligned = mmap.mmap(-1, 8192)
    aligned.write(bytes(8191) + bytes([step]))
    fd = os.open(folder / "tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT | flags)
    for at in (0, 4096):
        assert os.pwritev(fd, [memoryview(aligned)[at : at + 4096]], at) == 4096
    if sync:
        os.fsync(fd)
    os.close(fd)
    os.replace(folder / "tmp", folder / "model")
    idioms.sync(folder)


@pytest.mark.parametrize(
    ("flags", "sync", "durable"),
    [(0, False, False), (0, True, True), (os.O_DSYNC, False, True), (os.O_SYNC, False, True)],
)
def test_what_is_written_past_the_page_cache_is_durable_only_after_a_sync(tmp_path, flags, sync, durable):
    """O_DIRECT leaves out the page cache, but not the cache of the disk, nor the size of the file."""
    try:
        past_the_page_cache(tmp_path, 1, flags, sync)
    except OSError as error:
        pytest.skip(f"this file system does not open files with O_DIRECT: {error}")
    record = record_save(tmp_path, past_the_page_cache, 2, flags, sync)
    writes = [operation for operation in record.operations if isinstance(operation, Write)]
    assert [(write.offset, len(write.data)) for write in writes] == [(0, 4096), (4096, 4096)]
    assert writes[1].data == bytes(4095) + b"\x02"
    report = check(record, lambda folder: (folder / "model").read_bytes(), most=20)
    assert (report.count("broken") + report.count("lost") == 0) is durable, report


def by_sqlite(folder, step):
    base = sqlite3.connect(folder / "base")
    base.execute("pragma synchronous=extra")
    base.execute("create table if not exists steps (step integer)")
    base.execute("insert into steps values (?)", (step,))
    base.commit()
    base.close()


def last_step(folder):
    base = sqlite3.connect(folder / "base")
    try:
        return base.execute("select max(step) from steps").fetchone()[0]
    finally:
        base.close()


def test_sqlite_never_loses_both_steps(tmp_path):
    """It calls fdatasync for its folder, and the rules count only fsync for names: the last commit may be undone."""
    by_sqlite(tmp_path, 1)
    report = check(record_save(tmp_path, by_sqlite, 2), last_step, most=100)
    assert report.count("old") and report.count("new") and not report.count("broken"), report
    assert all("`unlink base-journal`" in found.state.story for found in report.bad)


def map_then_sync(folder):
    with open(folder / "f", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[10:14] = b"abcd"
        mapped.flush()


def map_without_sync(folder):
    with open(folder / "f", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[10:14] = b"abcd"


def map_after_sync(folder):
    with open(folder / "f", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = 1
        mapped.flush()
        threading.Event().wait(0.02)  # two ticks of the clock that stamps files
        mapped[10:14] = b"abcd"


@pytest.mark.parametrize(
    ("save", "expected"),
    [
        (map_then_sync, ["write 4 bytes of f at 10", "fdatasync f", "the save returned"]),
        (map_without_sync, ["write 4 bytes of f at 10", "the save returned"]),
        (map_after_sync, ["fdatasync f", "write 14 bytes of f at 0", "the save returned"]),
    ],
)
def test_what_is_written_through_a_memory_map_is_durable_only_after_its_last_msync(tmp_path, save, expected):
    (tmp_path / "f").write_bytes(bytes(100))
    assert words(record_save(tmp_path, save)) == expected


def several(folder, count):
    (folder / "f").write_text("before")
    yield
    for step in range(count):
        (folder / "f").write_text(str(step))
        if step < count - 1:
            yield


def test_a_generator_begins_at_its_first_yield_and_a_save_returns_at_each_later_one(tmp_path):
    record = record_save(tmp_path, several, 2)
    assert record.start[0].data == b"before"
    one = ["truncate f to 0 bytes", "write 1 bytes of f at 0", "the save returned"]
    assert words(record) == one * 2


def yields_behind_each_save(folder):
    yield
    for step in range(2):
        (folder / str(step)).mkdir()
        yield


def without_yields(folder):
    (folder / "0").mkdir()


@pytest.mark.parametrize("with_strace", [False, True])
@pytest.mark.parametrize(("save", "count"), [(yields_behind_each_save, 2), (without_yields, 1)])
def test_a_generator_may_yield_behind_its_last_save_too(tmp_path, monkeypatch, with_strace, save, count):
    monkeypatch.setattr(run, "strace_works", lambda: with_strace)
    expected = [word for step in range(count) for word in (f"mkdir {step}", "the save returned")]
    assert words(record_save(tmp_path, save)) == expected


def map_behind_a_yield(folder):
    yield
    (folder / "d").mkdir()
    yield
    map_without_sync(folder)


def test_what_a_later_save_maps_belongs_to_that_save(tmp_path):
    (tmp_path / "f").write_bytes(bytes(100))
    returned = "the save returned"
    expected = ["mkdir d", returned, "write 4 bytes of f at 10", returned]
    assert words(record_save(tmp_path, map_behind_a_yield)) == expected


def ends_without_returning(folder):
    os._exit(0)


def exchanges(folder):
    names = [os.fsencode(folder / name) for name in "ab"]
    assert ctypes.CDLL(None).renameat2(-100, names[0], -100, names[1], 2) == 0


def exchanges_before_the_record(folder):
    exchanges(folder)
    yield
    (folder / "c").touch()


def test_two_names_may_be_exchanged_before_the_record_begins(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(name)
    record = record_save(tmp_path, exchanges_before_the_record)
    assert [entry.data for entry in record.start] == [b"b", b"a"] and words(record)[0] == "create c"
    with pytest.raises(Escaped, match="exchanged two names"):
        record_save(tmp_path, exchanges)


def copies_and_removes_the_source(folder, removes):
    source = folder.parent / "source"
    source.write_text("abc")
    with open(source, "rb") as old, open(folder / "f", "wb") as new:
        os.sendfile(new.fileno(), old.fileno(), 0, 3)
    if removes:
        source.unlink()


def test_a_copy_from_outside_is_recorded_if_its_source_stays(tmp_path):
    (tmp_path / "in").mkdir()
    record = record_save(tmp_path / "in", copies_and_removes_the_source, False)
    assert words(record)[:2] == ["create f", "write 3 bytes of f at 0"]
    (tmp_path / "in" / "f").unlink()
    with pytest.raises(Escaped, match=r"copied .*/source, which is no longer there: keep it until the record is made"):
        record_save(tmp_path / "in", copies_and_removes_the_source, True)


def fails(folder):
    raise ArithmeticError("no save today")


def moves_a_folder_out(folder):
    os.rename(folder / "d", folder.parent / "away")


def moves_in_and_out(folder, synced):
    with open(folder.parent / "new", "wb") as file:
        file.write(b"new")
        file.flush()
        if synced:
            os.fsync(file.fileno())
    os.rename(folder / "f", folder.parent / "old")
    os.rename(folder.parent / "new", folder / "g")


@pytest.mark.parametrize("synced", [False, True])
def test_a_file_that_comes_from_outside_is_as_durable_as_its_fsync_there(tmp_path, synced):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "f").touch()
    sync = ["fsync g.moved-in"] if synced else []
    assert words(record_save(tmp_path / "in", moves_in_and_out, synced)) == [
        "unlink f", "create g.moved-in", "write 3 bytes of g.moved-in at 0", *sync, "rename g.moved-in → g",
        "the save returned",
    ]  # fmt: skip


def test_what_cannot_be_recorded_is_an_error(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "d").mkdir()
    with pytest.raises(RuntimeError, match="fails failed in its child process(.|\n)*no save today"):
        record_save(tmp_path / "in", fails)
    with pytest.raises(Escaped, match="moved the folder `d` out of the recorded folder"):
        record_save(tmp_path / "in", moves_a_folder_out)
    with pytest.raises(Escaped, match="ended before the save returned"):
        record_save(tmp_path / "in", ends_without_returning)
    with pytest.raises(ValueError, match="expected a function of a module"):
        record_save(tmp_path / "in", lambda folder: None)
    with pytest.raises(ValueError, match="partial(.|\n)*expected a function of a module"):
        record_save(tmp_path / "in", partial(fails))


def test_a_call_that_was_interrupted_is_one_call_with_both_moments():
    lines = [
        "1 5.0 fsync(3<\\x2f> <unfinished ...>",
        '2 5.5 write(4<\\x2f>, "\\x61", 1) = 1',
        "1 6.0 <... fsync resumed>) = 0",
    ]
    begun, write, done = calls(lines)
    assert (begun.name, begun.result, begun.time) == ("fsync", None, 5.0)
    assert (write.name, write.result, write.data) == ("write", 1, b"a")
    assert (done.name, done.result, done.time, done.begun) == ("fsync", 0, 6.0, begun)
    assert done.descriptors == [(3, "/", False)]


def hexadecimal(text):
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


def marked(what):
    return f'1 1.0 open("{hexadecimal("/dev/null/threeloops-" + what)}", O_RDONLY) = -1 ENOTDIR (Not a directory)'


def test_creat_is_an_open_that_cuts_the_file():
    path = hexadecimal("/in/f")
    made = f'1 1.0 creat("{path}", 0666) = 3<{path}>'
    lines = [marked("begin"), made, f'1 1.0 write(3<{path}>, "\\x61", 1) = 1', made, marked("saved")]
    record = Kernel("/in", [], "/").record(calls(lines))
    assert words(record) == ["create f", "write 1 bytes of f at 0", "truncate f to 0 bytes", "the save returned"]
