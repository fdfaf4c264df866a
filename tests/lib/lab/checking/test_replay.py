"""`replay` where there is no wall: beside the kernels, in a notebook or a file, and in a process of its own."""

import functools
import importlib.util
import subprocess
import sys
from textwrap import dedent

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


CALLS = []


def doubled(x, *, block=64, warps=4, programs=None):
    CALLS.append(x.numel())
    out = torch.empty_like(x)
    grid = (programs or triton.cdiv(x.numel(), block),)
    double_kernel[grid](x, out, x.numel(), BLOCK=block, num_warps=warps)
    return out


def doubled_twice(x):
    out = doubled(x)
    return out, doubled(out)


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


HONEST = {
    "a grid that does not look at the size": """
        @triton.jit
        def kernel(x, out, n, BLOCK: tl.constexpr):
            for first in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
                at = first + tl.arange(0, BLOCK)
                tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

        def doubled(x):
            out = torch.empty_like(x)
            kernel[(132,)](x, out, x.numel(), BLOCK=128)
            return out
    """,
    "several launches, of whole blocks and of the rest": """
        @triton.jit
        def whole_kernel(x, out, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(out + at, 2 * tl.load(x + at))

        @triton.jit
        def rest_kernel(x, out, first, n, BLOCK: tl.constexpr):
            at = first + tl.arange(0, BLOCK)
            tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

        def doubled(x):
            out, n = torch.empty_like(x), x.numel()
            whole_kernel[(n // 64,)](x, out, BLOCK=64)
            rest_kernel[(1,)](x, out, n // 64 * 64, n, BLOCK=64)
            return out
    """,
    "atomics into zeros": """
        @triton.jit
        def kernel(x, out, n, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.atomic_add(out + at, tl.load(x + at, mask=at < n), mask=at < n)

        def doubled(x):
            out = torch.zeros_like(x)
            for _ in range(2):
                kernel[(triton.cdiv(x.numel(), 32),)](x, out, x.numel(), BLOCK=32)
            return out
    """,
    "an autotuned kernel": """
        @triton.autotune([triton.Config({"BLOCK": 256}, num_warps=2), triton.Config({"BLOCK": 64})], key=["n"])
        @triton.jit
        def kernel(x, out, n, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

        def doubled(x):
            out, n = torch.empty_like(x), x.numel()
            kernel[lambda chosen: (triton.cdiv(n, chosen["BLOCK"]),)](x, out, n)
            return out
    """,
    "half of a square grid, which ends at once": """
        @triton.jit
        def kernel(x, out, n, BLOCK: tl.constexpr):
            row, column = tl.program_id(0), tl.program_id(1)
            if column <= row:
                at = (row * (row + 1) // 2 + column) * BLOCK + tl.arange(0, BLOCK)
                tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

        def doubled(x):
            out = torch.empty_like(x)
            kernel[(30, 30)](x, out, x.numel(), BLOCK=16)
            return out
    """,
}  # fmt: skip


def module_of(text, folder, name="a_cell"):
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    return module_of(CELL, tmp_path_factory.mktemp("cells"))


def test_a_replay_shows_outputs_traffic_and_launches(cell):
    x = torch.arange(100.0)
    run = replay(cell.doubled, x, block=32).require(2 * x)
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


def test_grids_are_those_of_the_launcher_however_long_its_inputs(cell):
    assert replay.grids(cell.doubled_twice, torch.zeros(65)) == [(2, 1, 1), (2, 1, 1)]
    assert replay.grids(cell.doubled, torch.zeros(1 << 24), block=128) == [(1 << 17, 1, 1)]
    with pytest.raises(CheckFailed, match="launches no kernel|torch"):
        replay.grids(cell.by_torch, torch.zeros(65))


def test_an_l2_model_is_the_tests_choice(cell):
    x = torch.ones(4096)
    assert replay(cell.doubled, x).require(2 * x).traffic.total.dram_bytes is None
    assert replay.with_l2("H100 SXM")(cell.doubled, x).require(2 * x).traffic.total.dram_bytes > 0


@pytest.mark.parametrize("asked", ["traffic", "launches", "torch_bytes", "code"])
def test_nothing_but_values_is_told_of_a_run_whose_values_nobody_compared(cell, asked):
    run = replay(cell.doubled, torch.ones(3))
    with pytest.raises(RuntimeError, match=rf"run\.{asked} counts only for right values: call run\.require"):
        getattr(run, asked) if asked != "code" else run.code("sm_90")
    assert run.stored == 12 and run.findings == []
    run.require(torch.full((3,), 2.0))
    assert getattr(run, asked) is not None


def test_wrong_values_are_told_first_and_nothing_else_is(cell):
    run = replay(cell.doubled, torch.ones(3))
    wrong = r"values of the double at \[1\] \(2 of 3 .*\n  value      2\n  expected   2\.1\n(.*\n)+  hint .* moves"
    with pytest.raises(CheckFailed, match=wrong):
        run.require(torch.tensor([2.0, 2.1, 1.95]), what="the double")
    with pytest.raises(CheckFailed, match="hint       halved"):
        run.require(torch.ones(3), hint="halved")
    with pytest.raises(CheckFailed, match="the number of tensors in what doubled returns"):
        run.require((torch.ones(3), torch.ones(3)))
    with pytest.raises(RuntimeError, match="counts only for right values"):
        _ = run.traffic


def test_values_are_right_within_2_percent_or_2_thousandths_of_the_largest(cell):
    run = replay(cell.doubled, torch.tensor([0.0, 1.0, 500.0, float("-inf")]))
    run.require(torch.tensor([1.9, 2.0, 1019.0, float("-inf")]))
    for wrong in ([2.1, 2.0, 1019.0, float("-inf")], [0.0, 2.0, 1023.0, float("-inf")], [0.0, 2.0, 1000.0, -1e30]):
        with pytest.raises(CheckFailed):
            replay(cell.doubled, torch.tensor([0.0, 1.0, 500.0, float("-inf")])).require(torch.tensor(wrong))
    with pytest.raises(CheckFailed):
        run.require(torch.tensor([0.0, 2.0, 1001.0, float("-inf")]), rtol=1e-4)
    run.require(torch.tensor([0.5, 2.0, 1000.0, float("-inf")]), atol=0.5)


def test_every_output_is_required(cell):
    run = replay(cell.doubled_twice, torch.ones(2)).require((torch.full((2,), 2.0), torch.full((2,), 4.0)))
    assert run.traffic.total.programs == 2
    with pytest.raises(CheckFailed, match="values of what doubled_twice returns, tensor 1 at"):
        run.require((torch.full((2,), 2.0), torch.full((2,), 2.0)))


def test_a_process_of_its_own_gives_the_same(cell, monkeypatch):
    """What a notebook on a GPU does, where kernels are compiled and the meter needs the interpreter."""
    here = replay(cell.doubled, torch.arange(9.0)).require(2 * torch.arange(9.0))
    monkeypatch.setattr(sys.modules[_Replayer.__module__], "_aside", True)
    aside = replay(cell.doubled, torch.arange(9.0)).require(2 * torch.arange(9.0))
    assert torch.equal(here.outputs, aside.outputs)
    assert here.traffic.launches == aside.traffic.launches and here.launches == aside.launches


def code_of(launcher, x, **options):
    (code,) = replay(launcher, x, **options).require(2 * x.double()).code("sm_90")
    return code


def test_code_is_that_of_the_cells_kernels(cell):
    code = code_of(cell.doubled, torch.ones(1 << 12), block=1024)
    assert code.name == "double_kernel" and code.widest_load == 128 and code.spilled_bytes == 0
    assert code_of(cell.doubled, torch.ones((1 << 12) + 1), block=1024).widest_load == 32
    assert code_of(cell.doubled, torch.ones((1 << 12) + 1)[1:], block=1024).widest_load == 32


def test_code_is_specialised_and_launched_as_in_the_run(cell):
    code = code_of(cell.doubled, torch.ones(1 << 12, dtype=torch.float16), block=1024)
    assert code.widest_load == 128 and code.options["num_warps"] == 4
    narrow = code_of(functools.partial(cell.doubled, warps=8), torch.ones(1 << 12, dtype=torch.float16), block=1024)
    assert narrow.widest_load == 64 and narrow.options["num_warps"] == 8


def test_the_launcher_is_called_once_however_much_is_asked_of_its_run(cell):
    x, before = torch.ones(77), len(cell.CALLS)
    run = replay(cell.doubled, x).require(2 * x)
    assert run.code("sm_90") and run.traffic.launches and run.launches and run.code("sm_80")
    assert cell.CALLS[before:] == [77]


def test_a_tensor_without_memory_never_reaches_a_launcher(cell):
    before = len(cell.CALLS)
    with pytest.raises(TypeError, match="tensor of float32 on meta: replay takes dense tensors of numbers"):
        replay(cell.doubled, torch.empty(3, device="meta"))
    assert len(cell.CALLS) == before


@pytest.mark.parametrize("name", HONEST)
def test_honest_kernels_of_other_shapes_are_right_and_show_their_code(tmp_path, name):
    text = "import torch\nimport triton\nimport triton.language as tl\n" + dedent(HONEST[name])
    x = torch.arange(7430.0)
    run = replay(module_of(text, tmp_path).doubled, x).require(2 * x)
    assert run.traffic.total.unique_stored >= x.nbytes
    assert {code.name for code in run.code("sm_90")} == {launch.name for launch in run.launches}


def test_code_that_does_not_compile_is_a_failure_of_a_check(cell):
    run = replay(cell.uncompilable, torch.ones(8)).require(torch.zeros(8))
    line = CELL.split("\n").index("    tl.store(x + tl.arange(0, WIDTH), 0.0)") + 1
    with pytest.raises(CheckFailed, match=rf"uncompilable_kernel does not compile for sm_90 \(cell, line {line}\)"):
        run.code("sm_90")


@pytest.mark.parametrize(
    ("elements", "programs", "says"),
    [
        (64, 257, ""),  # a persistent kernel whose grid does not look at the size
        (64, 258, "launches 258 programs, of which 257 write nothing: at most 256, or as many as those that write"),
        (64 * 300, 600, ""),
        (64 * 300, 601, "of which 301 write nothing"),
    ],
)
def test_programs_that_have_nothing_to_do_are_refused_when_they_are_too_many(cell, elements, programs, says):
    x = torch.ones(elements)
    if not says:
        assert replay(cell.doubled, x, programs=programs).require(2 * x).traffic.total.programs == programs
        return
    with pytest.raises(CheckFailed, match=says):
        replay(cell.doubled, x, programs=programs)


def test_programs_that_do_almost_nothing_are_refused_when_they_are_too_many(cell):
    x = torch.ones(257)
    assert replay(cell.doubled, x[:256], block=1).outputs.sum() == 512
    assert replay(cell.doubled, x.repeat(4), block=4).outputs.sum() == 2056
    with pytest.raises(CheckFailed, match="launches 257 programs that move 2,056 bytes, fewer than 32 each"):
        replay(cell.doubled, x, block=1)


def test_the_kit_stays_light():
    code = "import sys, threeloops.lab; print([m for m in ('torch', 'triton', 'threeloops.inner') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert wall.connection is None
