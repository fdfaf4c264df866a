"""The table of crash states: common saves lose both checkpoints in some, and a careful one in none."""

import os

import torch

from benchmarks.checkpoint_crash import Saver, crash_rows, errors_in_a_file


def careful(folder, state, step):
    with open(folder / "tmp", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "tmp", folder / "model.pt")
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def test_common_saves_lose_both_checkpoints_and_a_careful_one_does_not():
    ours = Saver("careful", careful, lambda folder: torch.load(folder / "model.pt", weights_only=True))
    rows = crash_rows(ours, most=60)
    found = {(row.what.removeprefix("crash states under "), row.by): row.median for row in rows}
    parties = list(dict.fromkeys(row.by for row in rows))
    assert len(parties) == 5 and len(found) == len(rows) == 2 * 3 * 5
    for by in parties:
        assert found["POSIX rules: states", by] > found["ext4 rules: states", by] > 5
        assert (found["POSIX rules: both lost", by] > 0) == (by != "careful")
    assert found["POSIX rules: lost after it returned", "careful"] == 0
    assert found["POSIX rules: lost after it returned", "torch.save, os.replace, no fsync"] > 0
    assert found["ext4 rules: both lost", "torch.save, os.replace, no fsync"] == 0, "ext4 flushes what is replaced"
    assert (
        found["ext4 rules: both lost", "torch.save in place"] > 0 < found["ext4 rules: both lost", "torch DCP in place"]
    )


def test_errors_go_to_a_file_that_is_kept_if_there_are_any(capfd):
    with errors_in_a_file() as path:
        os.write(2, b"a traceback")
    assert path.read_text() == "a traceback"
    path.unlink()
    with errors_in_a_file() as path:
        assert path.exists()
    assert not path.exists()
    os.write(2, b"seen")
    assert capfd.readouterr().err == "seen"
