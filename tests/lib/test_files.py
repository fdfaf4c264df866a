"""Where a user's files belong. A file is written whole: readers meet the old contents or the new ones."""

import os
from pathlib import Path

import pytest
from threeloops.files import replace_text, replacing
from threeloops.places import RECORD, base_folder, below, record_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_file_is_there_when_the_block_ends(tmp_path):
    path = tmp_path / "weights.bin"
    with replacing(path) as file:
        file.write(b"12")
        assert not path.exists()
        file.write(b"34")
    assert path.read_bytes() == b"1234" and names(tmp_path) == ["weights.bin"]


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="disk full"), replacing(path) as file:
        file.write(b"half of it")
        raise OSError("disk full")
    assert path.read_bytes() == b"old" and names(tmp_path) == ["weights.bin"]


def test_a_text_that_cannot_be_encoded_leaves_the_old_file(tmp_path):
    path = tmp_path / "notes.txt"
    replace_text(path, "grün\n")
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "half \udce4")
    assert path.read_bytes() == "grün\n".encode() and names(tmp_path) == ["notes.txt"]


def test_of_two_writers_of_a_path_each_writes_a_whole_file(tmp_path):
    """Two threads, or two machines with a shared folder, whose process ids may be equal."""
    path = tmp_path / "weights.bin"
    with replacing(path) as first:
        first.write(b"first")
        with replacing(path) as second:
            second.write(b"the second")
        assert path.read_bytes() == b"the second"
    assert path.read_bytes() == b"first" and names(tmp_path) == ["weights.bin"]


def test_a_pipe_a_device_and_a_folder_stay_what_they_are(tmp_path):
    """Root may rename over a device as well: an export to /dev/null would leave the machine without one."""
    pipe, folder, linked = tmp_path / "pipe", tmp_path / "folder", tmp_path / "linked"
    os.mkfifo(pipe)
    folder.mkdir()
    linked.symlink_to(pipe)
    for path in (pipe, folder, linked):
        with pytest.raises(FileExistsError, match="not an ordinary file"):
            replace_text(path, "x")
    assert (pipe.is_fifo(), folder.is_dir(), linked.is_symlink()) == (True, True, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "linked", "pipe"]


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A user's home folder, and no variable that names another place."""
    for variable in ("THREELOOPS_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_base_folders_are_those_of_the_xdg_specification(user, monkeypatch):
    assert base_folder("cache") == user / ".cache" and base_folder("data") == user / ".local/share"
    assert base_folder("state") == user / ".local/state"
    monkeypatch.setenv("XDG_STATE_HOME", "/mnt/state")
    assert base_folder("state") == Path("/mnt/state") and base_folder("cache") == user / ".cache"
    for ignored in ("", "state", "~/state"):
        monkeypatch.setenv("XDG_STATE_HOME", ignored)
        assert base_folder("state") == user / ".local/state", "the specification takes absolute paths only"


def test_a_record_is_state_and_threeloops_home_names_another_folder(user, monkeypatch):
    assert record_folder() == user / ".local/state/threeloops"
    monkeypatch.setenv("XDG_STATE_HOME", str(user / "state"))
    assert record_folder() == user / "state/threeloops"
    monkeypatch.setenv("THREELOOPS_HOME", "~/mine")
    assert record_folder() == user / "mine"


def test_a_record_that_an_earlier_release_left_elsewhere_stays_in_use(user, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(user / "state"))
    earlier, now = user / ".local/state/threeloops", user / "state/threeloops"
    for folder in (earlier, now):
        folder.mkdir(parents=True)
    assert record_folder() == now
    (earlier / RECORD).touch()
    assert record_folder() == earlier
    (now / RECORD).touch()
    assert record_folder() == now


def test_everything_below_a_folder_is_found(tmp_path):
    (tmp_path / "b/c").mkdir(parents=True)
    for name in ("b/c/deep", "a"):
        (tmp_path / name).touch()
    assert [path.relative_to(tmp_path).as_posix() for path in below(tmp_path)] == ["a", "b", "b/c", "b/c/deep"]
    assert below(tmp_path / "absent") == []


def test_a_folder_that_cannot_be_listed_is_not_passed_over(tmp_path, monkeypatch):
    (tmp_path / "broken").mkdir()
    list_folder = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("broken"):
            raise OSError("the disk cannot be read")
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(OSError, match="the disk cannot be read"):
        below(tmp_path)
