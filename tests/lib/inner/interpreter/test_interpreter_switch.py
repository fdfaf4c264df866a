"""Switching the interpreter on, what it leaves behind, and its self-test. What depends on the order in which things are
imported is tried in processes of their own."""

import os
import subprocess
import sys

import pytest
import torch
from threeloops.hardware import device
from threeloops.inner import interpreter
from threeloops.inner.interpreter import interpreting

INTERPRETED = interpreter.enable_without_gpu()

import triton
import triton.language as tl
from threeloops.inner.interpreter import self_test
from threeloops.inner.interpreter.functions import dots

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled on this machine")

KERNEL = """
@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0).to(tl.float32)
    tl.store(out, (tl.sum(values, 0) + values.sum(0)) / 2)
"""
RUN = """
x, out = torch.ones(5, dtype=torch.bfloat16), torch.zeros(1)
total[(1,)](x, out, 5, BLOCK=8)
print(out.item())
"""


@triton.jit
def fail(x):
    tl.store(x, tl.load(x) + undefined)  # noqa: F821


@triton.jit
def double(x):
    tl.store(x, tl.load(x) * 2)


def python(folder, *parts, **environment):
    """The last line that a program prints, run from a file: Triton reads a kernel's source."""
    file = folder / "program.py"
    file.write_text("\n".join(parts))
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(file)],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


IMPORTS = "import torch, triton, triton.language as tl"
ENABLE = "from threeloops.inner import interpreter\nassert interpreter.enable_without_gpu()"


@pytest.mark.parametrize("first", ["triton", "threeloops"])
def test_kernels_run_whichever_is_imported_first(tmp_path, first):
    """Imported first, Triton decorates its own `tl.sum` to be compiled."""
    order = (IMPORTS, ENABLE) if first == "triton" else (ENABLE, IMPORTS)
    assert python(tmp_path, *order, KERNEL, RUN, THREELOOPS_DEVICE="cpu") == "5.0"


def test_the_package_of_kernels_switches_it_on(tmp_path):
    assert python(tmp_path, "import threeloops.inner.kernels", IMPORTS, KERNEL, RUN, THREELOOPS_DEVICE="cpu") == "5.0"


GPU_MACHINE = """
import os, sys
from threeloops.inner.interpreter import interpreting as interpreter
interpreter.device = lambda: "cuda"
enabled, interpreted = interpreter.enable_without_gpu(), interpreter.interpreted()
print(enabled, interpreted, "triton" in sys.modules, os.environ.get("TRITON_INTERPRET"))
"""


def test_on_a_gpu_nothing_changes(tmp_path):
    assert python(tmp_path, GPU_MACHINE) == "False False False None"


def test_on_a_gpu_the_variable_set_by_hand_counts(tmp_path):
    assert python(tmp_path, GPU_MACHINE, TRITON_INTERPRET="1") == "True True True 1"


def test_enabling_again_installs_nothing_again():
    from triton.runtime.interpreter import GridExecutor

    before = GridExecutor.__call__
    assert interpreter.enable_without_gpu()
    assert GridExecutor.__call__ is before


@pytest.mark.parametrize("kernel", [double, fail])
def test_a_launch_puts_the_language_back(kernel):
    before = {
        name: vars(owner).get(name) for owner in (tl, tl.core.tensor) for name in ("load", "__index__", "__add__")
    }
    x = torch.ones(1)
    if kernel is fail:
        with pytest.raises(Exception, match="undefined"):
            kernel[(1,)](x)
    else:
        kernel[(1,)](x)
    after = {name: vars(owner).get(name) for owner in (tl, tl.core.tensor) for name in ("load", "__index__", "__add__")}
    assert after == before
    with pytest.raises(ValueError, match="_semantic"):
        tl.load(x)


def test_an_autotuner_without_a_clock_takes_its_first_configuration():
    configurations = [triton.Config({"VALUE": 7}), triton.Config({"VALUE": 8})]

    @triton.autotune(configurations, key=[])
    @triton.jit
    def fill(x, VALUE: tl.constexpr):
        tl.store(x, VALUE)

    x = torch.zeros(1)
    fill[(1,)](x)
    assert x.item() == 7
    assert fill.best_config is configurations[0]


def test_the_self_test_finds_everything_right():
    assert self_test.wrong_answers() == {}


PROBES_WITHOUT_REPAIRS = """
from threeloops.inner.interpreter import self_test
print(self_test.wrong_answers())
"""


def test_the_self_test_sees_what_is_wrong_without_repairs(tmp_path):
    """Each probe can fail: nothing is repaired in that process. Triton 3.7 itself is right about loops, erf, blocks."""
    said = python(tmp_path, PROBES_WITHOUT_REPAIRS, TRITON_INTERPRET="1")
    wrong = [
        "bfloat16 +, *, <, unary minus and constants",
        "float32 to bfloat16, to nearest even",
        "float32 to fp8, to nearest even, saturating",
        "tl.dot of bfloat16",
        "tl.sum and tl.reduce of bfloat16",
        "tl.atomic_add on bfloat16",
        "bfloat16 through tl.make_tensor_descriptor",
    ]
    assert all(repr(what) in said for what in wrong)


def test_a_repair_without_a_place_warns_and_the_rest_goes_on(monkeypatch):
    monkeypatch.setattr(
        interpreting,
        "_REPAIRS",
        (
            ("tea", "threeloops.inner.interpreter.language", "no_such"),
            ("rest", "threeloops.inner.interpreter.functions.dots", "install"),
        ),
    )
    installed = []
    monkeypatch.setattr(dots, "install", lambda: installed.append("dots"))
    interpreting._repair.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"tea could not be repaired \(AttributeError.*no_such.*threeloops doctor"):
        interpreter.enable_without_gpu()
    assert installed == ["dots"]


def test_device_is_what_decides(monkeypatch):
    monkeypatch.setenv("THREELOOPS_DEVICE", "cpu")
    assert device() == "cpu" and interpreter.interpreted()


def test_a_process_that_only_compiles_never_asks_for_a_device(tmp_path):
    """Its GPU is hidden, so that asking for "cuda" would end it."""
    asks = "from threeloops.inner.interpreter import enable_without_gpu\nprint(enable_without_gpu())"
    environment = {"THREELOOPS_COMPILE_ONLY": "1", "THREELOOPS_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": ""}
    assert python(tmp_path, asks, **environment) == "False"
