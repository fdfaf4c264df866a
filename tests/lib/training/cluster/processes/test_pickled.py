"""What travels to the ranks: a program, the module that it stands in, and the folders where others are found."""

import importlib
import sys
import textwrap
import types

import cloudpickle
import pytest
from threeloops.training.cluster import Cluster, RankFailed
from threeloops.training.cluster.processes.pickled import from_bytes, import_libraries, to_bytes


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of a student's own modules, beside the notebook that imports them."""
    (tmp_path / "helpers_of_mine.py").write_text("FACTOR = 3\n")
    (tmp_path / "program_of_mine.py").write_text(
        "import colorsys\nimport helpers_of_mine\nimport torch.distributed as dist\n\n\n"
        "def scaled(x):\n    return helpers_of_mine.FACTOR * x\n\n\n"
        "def program():\n    return scaled(dist.get_rank() + 1)\n\n\n"
        "def names():\n    return colorsys.__name__, helpers_of_mine.FACTOR, 'turtledemo'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("helpers_of_mine", "program_of_mine"):
        sys.modules.pop(name, None)


def called(program):
    return program()


def test_a_module_of_ones_own_travels_as_it_is_now(folder):
    mine = importlib.import_module("program_of_mine")
    assert Cluster(2).run(mine.program).results == (3, 6)
    mine.scaled = lambda x: -x  # as after an edit and a reload
    assert Cluster(2).run(mine.program).results == (-1, -2)
    assert Cluster(2).run(called, mine.program).results == (-1, -2)
    assert "program_of_mine" not in cloudpickle.list_registry_pickle_by_value()


def test_what_a_program_takes_from_libraries_is_imported_before_the_ranks_are_forked(folder, monkeypatch):
    """Each rank would import it for itself, and a program that trains names modules worth seconds."""
    sent = to_bytes(importlib.import_module("program_of_mine").names, ())
    for name in ("colorsys", "helpers_of_mine"):
        monkeypatch.delitem(sys.modules, name)
    import_libraries(sent)
    assert "colorsys" in sys.modules
    assert "helpers_of_mine" not in sys.modules, "which may be edited between two runs"
    assert "turtledemo" not in sys.modules, "which is a text"


def test_a_library_that_cannot_be_imported_is_the_ranks_error(folder, monkeypatch):
    mine = importlib.import_module("program_of_mine")
    lost = types.ModuleType("lost_library")
    lost.__file__ = mine.colorsys.__file__
    monkeypatch.setitem(sys.modules, "lost_library", lost)
    mine.colorsys = lost
    with pytest.raises(RankFailed, match="No module named 'lost_library'"):
        Cluster(2).run(mine.names)


def test_a_function_of_a_library_among_the_arguments_travels_by_its_name():
    _, (dedent,) = from_bytes(to_bytes(called, (textwrap.dedent,)))
    assert dedent is textwrap.dedent
