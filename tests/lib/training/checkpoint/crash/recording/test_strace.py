"""strace as an independent witness: what the kernel saw of a save is what the record says, in the same order."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

CALLS = (
    "write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,sync,syncfs,rename,renameat,renameat2,unlink,unlinkat,"
    "mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,truncate,ftruncate,fallocate,sendfile,copy_file_range,"
    "sync_file_range,open,openat,creat,msync"
)


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def replace(folder):
    with open(folder / "tmp", "wb") as file:
        file.write(b"x" * 20_000)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "tmp", folder / "latest")
    sync(folder)


def fsync_before_flush(folder):
    with open(folder / "f", "wb") as file:
        file.write(b"abc")
        os.fsync(file.fileno())


def text(folder):
    with open(folder / "f", "w", buffering=1) as file:
        print("one", "two", sep="\n", file=file)
    with open(folder / "f", "a") as file:
        file.write("three")
    with open(folder / "f", "r+") as file:
        file.truncate(2)


def pathlib_only(folder):
    (folder / "d").mkdir()
    (folder / "d" / "f").write_text("x")
    (folder / "d" / "f").replace(folder / "g")
    (folder / "d").rmdir()
    (folder / "g").unlink()


def os_only(folder):
    fd = os.open(folder / "f", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"abc")
    os.pwrite(fd, b"d", 7)
    os.ftruncate(fd, 5)
    os.posix_fallocate(fd, 0, 50)
    os.fdatasync(fd)
    os.close(fd)
    os.truncate(folder / "f", 1)
    os.link(folder / "f", folder / "g")
    os.symlink("g", folder / "s")
    os.rename(folder / "g", folder / "f")
    os.unlink(folder / "s")
    os.sync()


def relative_to_a_folder(folder):
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.mkdir("d", dir_fd=fd)
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.rename("f", "d/f", src_dir_fd=fd, dst_dir_fd=fd)
    os.unlink("d/f", dir_fd=fd)
    os.fsync(fd)
    os.close(fd)


def temporary_files(folder):
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(b"a" * 100)
        file.flush()
        os.fsync(file.fileno())
    os.link(file.name, folder / "f")
    os.unlink(file.name)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"gone")


def copies(folder):
    replace(folder)
    shutil.copy(folder / "latest", folder / "copy")
    shutil.copytree(folder, folder / "tree", ignore=lambda *_: ["tree"])
    shutil.rmtree(folder / "tree")


def from_a_thread(folder):
    thread = threading.Thread(target=replace, args=(folder,))
    thread.start()
    thread.join()


def torch_into_a_file(folder):
    import torch

    with open(folder / "f", "wb") as file:
        torch.save({"w": torch.arange(5000)}, file)
        file.flush()
        os.fsync(file.fileno())


def torch_by_path(folder):
    import torch

    torch.save({"w": torch.arange(5000)}, folder / "f")


IDIOMS = [
    replace, fsync_before_flush, text, pathlib_only, os_only, relative_to_a_folder, temporary_files, copies,
    from_a_thread, torch_into_a_file,
]  # fmt: skip


def run_all(top):
    """In the traced process: each save in a folder of its own, and what was recorded of it."""
    from threeloops.training.checkpoint.crash import Escaped, recording

    found = {}
    for save in (*IDIOMS, torch_by_path):
        folder = Path(top, save.__name__)
        folder.mkdir()
        try:
            with recording(folder) as recorder:
                save(folder)
        except Escaped as error:
            found[f"{save.__name__} escaped"] = str(error)
        found[save.__name__] = [str(each) for each in recorder.record.operations]
    Path(top, "records.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """What was recorded of each save, and the lines of strace."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed: apt-get install strace")
    top = tmp_path_factory.mktemp("strace")
    script = f"import runpy; runpy.run_path({__file__!r})['run_all']({str(top)!r})"
    options = ["-f", "-y", "-qq", "-s", "0", "-e", f"trace={CALLS}", "-o", str(top / "trace")]
    command = ["strace", *options, sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if "ptrace" in done.stderr.lower():
        pytest.skip(f"strace may not trace here: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stderr
    return top, json.loads((top / "records.json").read_text()), (top / "trace").read_text().splitlines()


def seen(lines, folder):
    """What changed a folder or synced it, in the words of a record, from lines of strace.

    Files are created, and cut to nothing, by opening them: no words of theirs are compared."""
    found = []
    for line in unfinished_joined(lines):
        match = re.match(r"(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)", line)
        if not match or match[3].startswith("-"):
            continue
        call, arguments, result = match[1], match[2], match[3]
        if call == "sync":
            found.append("sync")
        paths = resolved(arguments)
        inside = [os.path.relpath(path, folder) for path in paths if (path + "/").startswith(f"{folder}/")]
        if not inside:
            continue
        name = {"unlinkat": "rmdir" if "AT_REMOVEDIR" in arguments else "unlink"}.get(call, call)
        path = inside[0] if inside[0] != "." else "the folder"
        last = arguments.rsplit(", ", 1)[-1]
        match re.sub("at2?$", "", name):
            case "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" if result != "0":
                found.append(f"write {result} bytes of {path}")
            case "fsync" | "fdatasync" | "unlink" | "rmdir" | "mkdir" as word:
                found.append(f"{word} {path}")
            case "rename":
                found.append(f"rename {inside[0]} → {inside[1]}")
            case "link" | "symlink" as word:
                found.append(f"{word} {inside[-1]}")
            case "truncate" | "ftruncate":
                found.append(f"truncate {path} to {last} bytes")
            case "fallocate":
                found.append(f"truncate {path} to {last} bytes")
            case "open" | "creat" | "openat":
                pass
            case other:
                found.append(f"{other} {path}")
    return found


def resolved(arguments):
    """Absolute paths among the arguments of a call: names relative to the descriptor before them, and descriptors."""
    paths, base = [], ""
    for descriptor, quoted in re.findall(r'(?:AT_FDCWD|\d+)<([^>]*)>|"([^"]*)"', arguments):
        if descriptor:
            base = descriptor.removesuffix(" (deleted)")
            paths.append(base)
        else:
            if base and paths and paths[-1] == base:
                paths.pop()
            paths.append(os.path.join(base, quoted))
    return paths


def unfinished_joined(lines):
    """Calls of several threads that strace prints in two parts, in one."""
    begun = {}
    for line in lines:
        process = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[process] = line.removesuffix("<unfinished ...>").rstrip()
        elif "resumed>" in line:
            yield begun.pop(process, "") + line.split("resumed>", 1)[1]
        else:
            yield line


def told(words):
    """A record's words without what strace does not tell."""
    found = []
    for word in words:
        if word.startswith("create ") or word == "the save returned" or re.match(r"truncate .* to 0 bytes", word):
            continue
        word = re.sub(r"^(write .*) at \d+$", r"\1", word)
        found.append(re.sub(r"^symlink (.*) → .*", r"symlink \1", word))
    return found


@pytest.mark.parametrize("save", IDIOMS, ids=lambda save: save.__name__)
def test_the_kernel_saw_what_was_recorded(traced, save):
    top, records, lines = traced
    kernel = [word for word in seen(lines, str(top / save.__name__)) if word != "sync"]
    recorded = [word for word in told(records[save.__name__]) if word != "sync"]
    assert kernel[0] == "mkdir the folder", "made before the recording"
    assert kernel[1:] == recorded
    assert len(recorded) >= 2


def test_sync_is_seen_too(traced):
    _, records, lines = traced
    assert sum(words.count("sync") for words in records.values()) == sum(" sync()" in line for line in lines) == 1


def test_what_c_code_writes_is_seen_by_the_kernel_alone_and_the_recorder_says_so(traced):
    top, records, lines = traced
    assert any(word.startswith("write") for word in seen(lines, str(top / "torch_by_path")))
    assert records["torch_by_path"] == ["the save returned"]
    assert "`f` has " in records["torch_by_path escaped"]
