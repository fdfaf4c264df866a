"""The library as a folder on `sys.path`, installed nowhere: the processes that it starts find it and nothing else."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import threeloops

RUN = """
import os, sys

sys.path += sys.argv[1:]
import threeloops
from threeloops.lab import replay

assert threeloops.__path__ == [sys.argv[1] + "/threeloops"], threeloops.__path__
sys.modules[replay.__module__]._aside = True  # kernels are executed in a process of their own, as on a GPU machine

import importlib.util
import torch

spec = importlib.util.spec_from_file_location("cell", "cell.py")
cell = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cell)
run = replay(cell.doubled, torch.arange(4.0)).require(2 * torch.arange(4.0))
print(run.outputs.tolist(), run.code("sm_90")[0].name, os.getpid())
"""
CELL = """
import torch
import triton
import triton.language as tl
from threeloops.inner import interpreter

interpreter.enable_without_gpu()


@triton.jit
def double(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at))


def doubled(x):
    out = torch.empty_like(x)
    double[(1,)](x, out, BLOCK=4)
    return out
"""
LISTED = """
import os, sys

def main():
    import trace

    print(trace.__file__, os.getcwd() in sys.path, "" in sys.path)
"""
WITNESS = """
open(os.path.join(os.environ["WITNESSES"], f"{__name__.rpartition('.')[2]} {os.getpid()}"), "x").close()
"""


@pytest.fixture
def checkout(tmp_path):
    """A copy of the library whose two processes tell that it was they who imported it."""
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(Path(threeloops.__file__).parent, tmp_path / "lib" / "threeloops", ignore=skip)
    for name in ("replay/server.py", "codegen/compiler.py"):
        with open(tmp_path / "lib" / "threeloops" / "inner" / name, "a") as module:
            module.write(WITNESS)
    (tmp_path / "here").mkdir()
    (tmp_path / "witnesses").mkdir()
    return tmp_path


def run(checkout, text, *folders):
    """What a fresh interpreter prints: without site-packages' .pth files, so without an editable installation."""
    folders = [str(checkout / "lib"), *folders, *dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib")))]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["WITNESSES"] = str(checkout / "witnesses")
    command = [sys.executable, "-S", "-c", text, *folders]
    done = subprocess.run(
        command, cwd=checkout / "here", env=variables, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kernels_are_replayed_and_compiled_by_a_library_that_is_not_installed(checkout):
    (checkout / "here" / "cell.py").write_text(CELL)
    (checkout / "here" / "trace.py").write_text("raise SystemExit('a student has a module of this name')")
    *result, asking = run(checkout, RUN).splitlines()[-1].split(" ")
    assert " ".join(result) == "[0.0, 2.0, 4.0, 6.0] double"
    imported = [path.name.split(" ") for path in (checkout / "witnesses").iterdir()]
    assert sorted(module for module, pid in imported if pid != asking) == ["compiler", "server"]


def test_no_module_beside_the_library_or_the_student_shadows_another(checkout):
    (checkout / "lib" / "threeloops" / "listed.py").write_text(LISTED)
    text = "import sys, subprocess\nsys.path += sys.argv[1:]\nfrom threeloops.module_process import command\n"
    text += "print(subprocess.run(command('threeloops.listed'), capture_output=True, text=True, check=True).stdout)"
    stdlib = Path(sysconfig.get_path("stdlib")).resolve()
    assert run(checkout, text).split() == [str(stdlib / "trace.py"), "False", "False"]
