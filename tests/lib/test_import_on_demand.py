"""A package imports its public names when they are first used, and otherwise behaves as if it had imported them."""

import copy
import importlib
import pickle
import sys

import cloudpickle
import pytest
from threeloops import import_on_demand

NAME = "package_on_demand"
FACE = '''"""A package."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from package_on_demand import tables
    from package_on_demand.costs import Cost, total as sum_of
    from package_on_demand.memory import memory
    from package_on_demand.withheld import answer
else:
    import_on_demand(__name__)

__all__ = ["Cost", "answer", "memory", "sum_of", "tables"]
'''
MODULES = {
    "costs": "class Cost: pass\ndef total(): return 3\n",
    "memory": "def memory(): return 80\n",
    "tables": "ROWS = 4\n",
    "unnamed": "HIDDEN = 1\n",
    "withheld": "raise ImportError('withheld in graded runs')\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "__init__.py").write_text(FACE)
    for module, text in MODULES.items():
        (folder / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(NAME)
    for module in [module for module in sys.modules if module.partition(".")[0] == NAME]:
        del sys.modules[module]


def loaded():
    return {module.rpartition(".")[2] for module in sys.modules if module.startswith(f"{NAME}.")}


def test_a_name_imports_its_module_and_no_other(package):
    assert loaded() == set()
    assert package.Cost.__name__ == "Cost"
    assert loaded() == {"costs"}


def test_every_form_of_import_works(package):
    names = {}
    exec("from package_on_demand import Cost, sum_of, tables, unnamed\nimport package_on_demand.costs as costs", names)
    assert names["costs"].Cost is names["Cost"]
    assert names["sum_of"]() == 3
    assert (names["tables"].ROWS, names["unnamed"].HIDDEN) == (4, 1)


def test_a_star_imports_what_all_lists(package):
    package.__all__.remove("answer")
    names = {}
    exec("from package_on_demand import *", names)
    assert names.keys() - {"__builtins__"} == {"Cost", "memory", "sum_of", "tables"}


def test_a_name_hides_the_module_that_is_called_the_same_whichever_is_imported_first(package):
    module = importlib.import_module(f"{NAME}.memory")
    assert package.memory() == 80
    assert package.memory is module.memory


def test_a_name_can_be_replaced_and_put_back(package, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(f"{NAME}.memory", lambda: 0)
        assert package.memory() == 0
    assert package.memory() == 80


def test_an_unknown_name_is_an_error_that_names_the_package_and_the_name(package):
    with pytest.raises(AttributeError, match="'package_on_demand' has no attribute 'Coast'"):
        _ = package.Coast
    with pytest.raises(ImportError, match="cannot import name 'Coast' from 'package_on_demand'"):
        exec("from package_on_demand import Coast")


def test_an_import_that_fails_says_why_and_leaves_the_other_names(package):
    with pytest.raises(ImportError, match="withheld in graded runs"):
        _ = package.answer
    assert package.sum_of() == 3


def test_completion_lists_names_before_they_are_imported(package):
    assert {"Cost", "memory", "sum_of", "tables", "__all__"} <= set(dir(package))
    assert loaded() == set()


def test_reloading_a_module_and_its_package_renews_the_names(package):
    before = package.Cost
    costs = importlib.reload(sys.modules[f"{NAME}.costs"])
    assert importlib.reload(package) is package
    assert package.Cost is costs.Cost
    assert package.Cost is not before


def test_packages_and_what_they_name_can_be_pickled_and_copied(package):
    for pickling in (pickle, cloudpickle):
        assert pickling.loads(pickling.dumps(package)) is package
        assert pickling.loads(pickling.dumps(package.Cost)) is package.Cost
    assert copy.deepcopy(package) is package


def test_a_package_without_source_says_that_it_needs_it(package, monkeypatch):
    monkeypatch.setattr(package.__spec__.loader, "get_source", lambda name: None)
    with pytest.raises(ImportError, match="package_on_demand is installed without its source"):
        import_on_demand(NAME)
