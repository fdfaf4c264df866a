"""The table of savers: each row is judged, under the rules of each file system."""

import pytest
from threeloops.training.checkpoint.crash import strace_works

from benchmarks.__main__ import main
from benchmarks.checkpoint_savers import RULES, SAVERS, Saver, page

pytestmark = pytest.mark.skipif(not strace_works(), reason="strace is not installed or may not trace here")


def cells(text, name):
    row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return row.split(" | ")[2:]


def chosen(*names):
    return tuple(saver for saver in SAVERS if saver.save.__name__ in names)


def test_ours_survives_and_a_file_that_is_written_in_place_does_not():
    said = []
    text = page(said.append, savers=chosen("ours", "by_safetensors"), most=40)
    assert len(said) == 2 and all(line.splitlines()[0] in text for line in said)
    assert all("survives" in cell for cell in cells(text, "threeloops `Checkpointer.save`"))
    assert "neither loads" in cells(text, "`safetensors.torch.save_file`")[0]
    assert "`safetensors.torch.save_file`, POSIX: after operation" in said[1] and "Cause: no fsync of" in said[1]
    assert all(rules.name in text for rules in RULES) and "torch 2." in text


def test_a_saver_whose_package_is_not_installed_is_named():
    absent = Saver("some saver", SAVERS[0].save, "its loader", SAVERS[0].load, ("no-such-package",))
    assert "Left out, because a package is not installed: some saver (no-such-package)" in page(print, savers=(absent,))


def test_names_and_functions_of_the_savers_are_distinct():
    assert len({saver.name for saver in SAVERS}) == len({saver.save for saver in SAVERS}) == len(SAVERS) >= 15


def test_the_option_belongs_to_one_benchmark(capsys):
    with pytest.raises(SystemExit):
        main(["decode", "--savers"])
    assert "expected `python -m benchmarks checkpoint --savers`" in capsys.readouterr().err
