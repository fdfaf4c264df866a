"""Importing a part of the library loads what that part needs: torch only if it computes with tensors."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIB = ROOT / "lib"
FACES = sorted((LIB / "threeloops").rglob("__init__.py"))
OWN_CODE = {"threeloops", "threeloops.inner.kernels", "threeloops.inner.kernels.catalog"}
"""Packages whose `__init__.py` does more than pass names on."""

LIGHT = [
    "threeloops.capstone",
    "threeloops.capstone.planner",
    "threeloops.inner.costs",
    "threeloops.inner.roofline",
    "threeloops.lab",
    "threeloops.product.batching.scheduler",
    "threeloops.product.batching.simulated.kernels",
    "threeloops.product.disaggregated",
    "threeloops.product.disaggregated.policies.routing",
    "threeloops.product.disaggregated.simulation",
    "threeloops.product.fleet",
    "threeloops.product.fleet.policies.autoscaler",
    "threeloops.product.fleet.simulation",
    "threeloops.product.loadgen",
    "threeloops.product.loadgen.replay",
    "threeloops.simulation.event_loop",
    "threeloops.training.collectives.ring",
    "threeloops.training.elastic.goodput.simulate",
    "threeloops.training.pipeline.schedule",
    "threeloops.training.pipeline.simulate",
    "threeloops.training.planning",
    "threeloops.training.planning.search",
    "threeloops.training.planning.time",
]
AT_MOST_OURS = 10
"""Modules of the library that the scheduler loads, itself and its packages included."""
AT_LEAST_LIGHT = 360
"""Modules of the library that import without torch; 370 when this was written."""

VISIT = """
import importlib, json, sys

class NeedsTorch(BaseException):
    pass

class Guard:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "triton"):
            raise NeedsTorch

sys.meta_path.insert(0, Guard())
heavy = []
for name in json.loads(sys.stdin.read()):
    try:
        importlib.import_module(name)
    except NeedsTorch:
        heavy.append(name)
print(json.dumps(heavy))
"""


def module_of(path: Path) -> str:
    parts = path.relative_to(LIB).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def python(program: str, given: str = "") -> str:
    """What `program` prints in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(LIB), str(ROOT / "grader")])}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=given, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", LIGHT)
def test_what_only_decides_or_predicts_imports_without_torch(module):
    assert json.loads(python(VISIT, json.dumps([module]))) == []


def test_the_scheduler_loads_few_other_modules():
    loaded = python("import sys, threeloops.product.batching.scheduler\nfor name in sys.modules: print(name)").split()
    assert len([name for name in loaded if name.startswith("threeloops")]) <= AT_MOST_OURS


def test_most_of_the_library_imports_without_torch():
    names = [module_of(path) for path in sorted((LIB / "threeloops").rglob("*.py")) if path.stem != "__main__"]
    heavy = json.loads(python(VISIT, json.dumps(names)))
    assert len(names) - len(heavy) >= AT_LEAST_LIGHT, heavy


@pytest.mark.parametrize("path", [path for path in FACES if module_of(path) not in OWN_CODE], ids=module_of)
def test_a_package_passes_its_names_on_when_they_are_used(path):
    """They stand in an `if TYPE_CHECKING:` block, which type checkers read, and `import_on_demand` too."""
    tree = ast.parse(path.read_text())
    at_once = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert at_once <= {"typing", "threeloops", "threeloops.inner.interpreter"}, "import it under TYPE_CHECKING"
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    listed = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    if blocks or any(listed):
        (block,), (names,) = blocks, listed
        assert ast.unparse(block.test) == "TYPE_CHECKING"
        assert [ast.unparse(node) for node in block.orelse] == ["import_on_demand(__name__)"]
        assert sorted(alias.asname or alias.name for node in block.body for alias in node.names) == sorted(names)


def test_every_name_of_every_package_can_be_imported():
    packages = [module_of(path) for path in FACES]
    python(f"for package in {packages!r}:\n    exec(f'from {{package}} import *')")
