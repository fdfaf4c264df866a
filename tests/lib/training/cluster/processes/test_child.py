"""What travels to the ranks: a program, the module that it stands in, and the folders where others are found."""

import importlib
import sys

import cloudpickle
import pytest
from threeloops.training.cluster import Cluster


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of a student's own modules, beside the notebook that imports them."""
    (tmp_path / "helpers_of_mine.py").write_text("FACTOR = 3\n")
    (tmp_path / "program_of_mine.py").write_text(
        "import helpers_of_mine\nimport torch.distributed as dist\n\n\n"
        "def scaled(x):\n    return helpers_of_mine.FACTOR * x\n\n\n"
        "def program():\n    return scaled(dist.get_rank() + 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("helpers_of_mine", "program_of_mine"):
        sys.modules.pop(name, None)


def test_a_module_of_ones_own_travels_as_it_is_now(folder):
    mine = importlib.import_module("program_of_mine")
    assert Cluster(2).run(mine.program).results == (3, 6)
    mine.scaled = lambda x: -x  # as after an edit and a reload
    assert Cluster(2).run(mine.program).results == (-1, -2)
    assert "program_of_mine" not in cloudpickle.list_registry_pickle_by_value()
