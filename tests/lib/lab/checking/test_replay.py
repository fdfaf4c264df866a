"""`replay` where there is no wall: beside the kernels, in a notebook or a file, and in a process of its own."""

import functools
import importlib.util
import subprocess
import sys

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from threeloops.inner import interpreter
from threeloops.lab import CheckFailed, check, replay
from threeloops.lab.checking import wall
from threeloops.lab.checking.replay import _Replayer

pytestmark = pytest.mark.skipif(not interpreter.enable_without_gpu(), reason="kernels are compiled in this process")

CELL = """\
import torch
import triton
import triton.language as tl


@triton.jit
def double(x):
    return x * 2


@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, double(tl.load(x + offsets, mask=offsets < n)), mask=offsets < n)


def doubled(x, *, block=64):
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), block),)](x, out, x.numel(), BLOCK=block)
    return out


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return doubled(x)

    @staticmethod
    def backward(ctx, grad):
        return doubled(grad)


def by_torch(x):
    return x * 2


def unwritten(x):
    raise NotImplementedError()


WIDTH = 8


@triton.jit
def uncompilable_kernel(x):
    tl.store(x + tl.arange(0, WIDTH), 0.0)


def uncompilable(x):
    uncompilable_kernel[(1,)](x)
    return x
"""


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    path = tmp_path_factory.mktemp("cells") / "a_cell.py"
    path.write_text(CELL)
    spec = importlib.util.spec_from_file_location("a_cell", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_replay_shows_outputs_traffic_and_launches(cell):
    x = torch.arange(100.0)
    run = replay(cell.doubled, x, block=32)
    assert torch.equal(run.outputs, 2 * x)
    assert run.traffic.total.unique_bytes == 800
    assert [(launch.name, launch.grid) for launch in run.launches] == [("double_kernel", (4, 1, 1))]
    assert run.torch_bytes == 0 and run.findings == []
    assert "a_cell" not in repr(run)


@pytest.mark.parametrize("wrapped", ["partial", "wraps", "apply"])
def test_the_cell_of_a_wrapped_launcher_is_found(cell, wrapped):
    launcher = {
        "partial": functools.partial(cell.doubled, block=16),
        "wraps": functools.wraps(cell.doubled)(lambda x: cell.doubled(x)),
        "apply": cell.Doubled.apply,
    }[wrapped]
    assert replay(launcher, torch.ones(5, requires_grad=True)).outputs.tolist() == [2.0] * 5


def test_a_launcher_without_source_is_told_so():
    with pytest.raises(CheckFailed, match="has no source"):
        replay(eval("lambda x: x.new_empty(1)"), torch.ones(1))


def test_cells_of_a_notebook_are_found():
    """IPython keeps the text of its cells where `linecache` finds it, as ipykernel does."""
    shell = InteractiveShell()
    assert shell.run_cell("%time 1\n" + CELL, store_history=True).success
    doubled = shell.user_ns["doubled"]
    assert replay(doubled, torch.ones(3)).outputs.tolist() == [2.0] * 3
    assert shell.run_cell("def elsewhere(x):\n    return doubled(x)\n").success
    with pytest.raises(CheckFailed, match="'double_kernel', which its cell does not define"):
        replay(shell.user_ns["elsewhere"], torch.ones(3))


def test_failures_are_failures_of_a_check(cell):
    with pytest.raises(CheckFailed, match="replay: by_torch returns a tensor that torch made, by torch.mul"):
        replay(cell.by_torch, torch.ones(3))
    with pytest.raises(CheckFailed, match="doubled is not written yet"), check("doubled", "it doubles"):
        replay(cell.unwritten, torch.ones(3))
    with pytest.raises(TypeError, match="ndarray"):
        replay(cell.doubled, torch.ones(3).numpy())
    with pytest.raises(TypeError, match="missing"):
        replay(cell.doubled)


def test_what_comes_from_the_students_side_may_be_anything(cell, monkeypatch):
    module = sys.modules[_Replayer.__module__]
    for odd in (
        None,
        [1],
        "x",
        {1: {2}},
        {"steps": object()},
        {"steps": [float("inf")], "outputs": {}},
        {"refused": object()},
    ):
        monkeypatch.setattr(module, "_record", lambda launcher, inputs, odd=odd: odd)
        with pytest.raises(CheckFailed, match="replay: doubled"):
            replay(cell.doubled, torch.ones(1))


def test_an_l2_model_is_the_tests_choice(cell):
    x = torch.ones(4096)
    assert replay(cell.doubled, x).traffic.total.dram_bytes is None
    assert replay.with_l2("H100 SXM")(cell.doubled, x).traffic.total.dram_bytes > 0


def test_a_process_of_its_own_gives_the_same(cell, monkeypatch):
    """What a notebook on a GPU does, where kernels are compiled and the meter needs the interpreter."""
    here = replay(cell.doubled, torch.arange(9.0))
    monkeypatch.setattr(sys.modules[_Replayer.__module__], "_aside", True)
    aside = replay(cell.doubled, torch.arange(9.0))
    assert torch.equal(here.outputs, aside.outputs)
    assert here.traffic.launches == aside.traffic.launches and here.launches == aside.launches


def test_code_is_that_of_the_cells_kernels(cell):
    run = replay(cell.doubled, torch.ones(1 << 12), block=1024)
    (code,) = run.code("sm_90")
    assert code.name == "double_kernel" and code.widest_load == 128 and code.spilled_bytes == 0
    (same,) = replay.code("sm_90", cell.doubled, torch.empty(1 << 12, device="meta"), block=1024)
    assert same.sass == code.sass
    (odd,) = replay.code("sm_90", cell.doubled, torch.empty((1 << 40) + 1, device="meta"), block=1024)
    assert odd.widest_load == 32


def test_code_that_does_not_compile_is_a_failure_of_a_check(cell):
    run = replay(cell.uncompilable, torch.ones(8))
    line = CELL.split("\n").index("    tl.store(x + tl.arange(0, WIDTH), 0.0)") + 1
    with pytest.raises(CheckFailed, match=rf"uncompilable_kernel does not compile for sm_90 \(cell, line {line}\)"):
        run.code("sm_90")


def test_the_kit_stays_light():
    code = "import sys, threeloops.lab; print([m for m in ('torch', 'triton', 'threeloops.inner') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert wall.connection is None
