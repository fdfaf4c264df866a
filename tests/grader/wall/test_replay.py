"""Replay through the wall: a kernel earns the points, and nothing that only looks like one.

Each answer replaces the cell `softmax` (40 points) of an otherwise honest submission; `column_sums` (40) and `mean`
(20) must be graded as ever. Attacks fail with a message that names the fault; honest programs of every style pass.
"""

import platform
import subprocess
import sys
from dataclasses import replace
from textwrap import dedent

import pytest
from grading import QUICK, SANDBOXES, fresh_course, grade, needs, points, said, submission
from kernel_attacks import ATTACKS
from threeloops_grader.authoring.labs import find_lab
from threeloops_grader.authoring.lint import lint
from threeloops_grader.machine.child_process import environment
from threeloops_grader.sandbox import seccomp
from threeloops_grader.sandbox.pool import _modules_of, _without_withheld
from threeloops_grader.sandbox.warmup import COMPILER, REPLAY
from toy_kernel_lab import LOOKS_AT_CODE, SOURCE, make_kernel_course

LIMITS = replace(QUICK, test_seconds=300, notebook_seconds=1800)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with fresh_course(tmp_path_factory.mktemp("kernels"), make_kernel_course) as lab:
        yield lab


def answers(kernel="", launcher="", before="", after=""):
    parts = (before, kernel or KERNEL, launcher or LAUNCHER, after)
    return "\n\n".join(dedent(part).strip("\n") for part in parts if part) + "\n"


KERNEL = """
@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + offsets, mask=offsets < columns, other=float("-inf"))
    exponentials = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, 0), mask=offsets < columns)
"""
LAUNCHER = """
def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
"""


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_earns_nothing(lab, name):
    needs("bwrap")
    attack = ATTACKS[name]
    notebook = submission(lab, **{attack.exercise: attack.text})
    record = grade(lab, notebook, "bwrap", replace(LIMITS, **attack.limits))
    earned = points(record)
    assert earned.pop(attack.exercise) == 0, said(record)
    assert attack.says in said(record), said(record)
    assert earned.pop("mean") == 20, said(record)
    (other,) = earned.values()
    assert attack.other in (other, None), said(record)


def test_a_kernel_in_another_cell_is_not_the_answers(lab):
    """Its text is not the submitted cell's, so nobody can say what it computes."""
    needs("bwrap")
    answer = dedent(LAUNCHER)
    record = grade(
        lab,
        submission(lab, before="import triton\nimport triton.language as tl\n" + KERNEL, softmax=answer),
        "bwrap",
        LIMITS,
    )
    assert points(record)["softmax"] == 0
    assert "launches 'softmax_kernel', which its cell does not define" in said(record)


HONEST = {
    "the reference": answers(),
    "a helper kernel, constants, defaults, keywords": answers(
        """
        LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
        NOTHING = -float("inf")


        @triton.jit
        def exponential(x, base_two: tl.constexpr = True):
            '''Either way.'''
            if base_two:
                return tl.exp2(x * LOG2E)
            else:
                return tl.exp(x)


        @triton.jit
        def softmax_kernel(x, out, columns, scale=1.0, BLOCK: tl.constexpr = 256):
            row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
            values = tl.load(x + row * columns + offsets, mask=offsets < columns, other=NOTHING) * scale
            exponentials = exponential(values - tl.max(values, axis=0))
            tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, axis=0), mask=offsets < columns)
        """,
        """
        def softmax(x):
            out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            softmax_kernel[(x.shape[0],)](columns=x.shape[1], out=out, x=x.contiguous())
            return out
        """,
    ),
    "autotune and heuristics": answers(
        """
        @triton.autotune([triton.Config({}, num_warps=w) for w in (1, 4)], key=["columns"])
        @triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["columns"])})
        @triton.jit
        def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
            row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
            values = tl.load(x + row * columns + offsets, mask=offsets < columns, other=float("-inf"))
            exponentials = tl.exp(values - tl.max(values, 0))
            tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, 0), mask=offsets < columns)
        """,
        """
        def softmax(x):
            x = x.contiguous()
            out = torch.empty_like(x)
            softmax_kernel[lambda given: (x.shape[0],)](x, out, x.shape[1])
            return out
        """,
    ),
    "an autograd function": answers(
        launcher="""
        class Softmax(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                x = x.contiguous()
                out = x.new_empty(x.shape)
                softmax_kernel[x.shape[0], 1, 1](x, out, x.shape[1], 256, num_warps=8)
                ctx.save_for_backward(out)
                return out

            @staticmethod
            def backward(ctx, grad):
                raise RuntimeError


        def softmax(x):
            return Softmax.apply(x)
        """
    ),
    "in place on a copy, through views": answers(
        launcher="""
        def softmax(x):
            out = x.clone(memory_format=torch.contiguous_format)
            flat = out.view(-1)
            softmax_kernel[(x.shape[0],)](flat, flat, x.shape[1], BLOCK=256)
            return flat.reshape(x.shape)
        """
    ),
    "strides, padding, a slice of a larger tensor": answers(
        """
        @triton.jit
        def softmax_kernel(x, out, columns, row_stride, column_stride, out_stride, BLOCK: tl.constexpr):
            row, offsets = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
            exists = offsets < columns
            values = tl.load(x + row * row_stride + offsets * column_stride, mask=exists, other=float("-inf"))
            exponentials = tl.exp(values - tl.max(values))
            tl.store(out + row * out_stride + offsets, exponentials / tl.sum(exponentials), mask=exists)
        """,
        """
        def softmax(x):
            rows, columns = x.shape
            assert x.dim() == 2 and x.data_ptr() % 4 == 0 and not x.is_cuda
            out = torch.zeros(rows, columns + 7, dtype=x.dtype)[:, :columns]
            softmax_kernel[(rows,)](x, out, columns, *x.stride(), out.stride(0), BLOCK=256)
            return out
        """,
    ),
    "a tensor descriptor": answers(
        """
        @triton.jit
        def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
            row = tl.program_id(0)
            values = x.load([row, 0])
            values = tl.where(tl.arange(0, BLOCK)[None, :] < columns, values, float("-inf"))
            exponentials = tl.exp(values - tl.max(values, 1, keep_dims=True))
            out.store([row, 0], exponentials / tl.sum(exponentials, 1, keep_dims=True))
        """,
        """
        def softmax(x):
            from triton.tools.tensor_descriptor import TensorDescriptor

            rows, columns = x.shape
            width = (columns + 3) // 4 * 4
            source, out = x.new_empty(rows, width)[:, :columns], x.new_empty(rows, width)[:, :columns]
            source.copy_(x)
            block = [1, max(4, triton.next_power_of_2(columns))]
            given, result = (TensorDescriptor(t, list(t.shape), list(t.stride()), block) for t in (source, out))
            softmax_kernel[(rows,)](given, result, columns, BLOCK=block[1])
            return out
        """,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_programs_of_every_style_earn_all_points(lab, name):
    needs("bwrap")
    record = grade(lab, submission(lab, softmax=HONEST[name]), "bwrap", LIMITS)
    assert points(record) == {"softmax": 40.0, "column_sums": 40.0, "mean": 20.0}, said(record)
    assert record.notes == []


def test_it_works_without_a_sandbox_too(lab):
    record = grade(lab, submission(lab), SANDBOXES[1], LIMITS)
    assert points(record) == {"softmax": 40.0, "column_sums": 40.0, "mean": 20.0}, said(record)


def test_the_untouched_lab_earns_nothing(lab):
    needs("bwrap")
    blank = submission(
        lab,
        softmax="def softmax(x):\n    raise NotImplementedError()\n",
        column_sums="def column_sums(x, *, block_rows=4):\n    raise NotImplementedError()\n",
        mean="def mean(values):\n    raise NotImplementedError()\n",
    )
    record = grade(lab, blank, "bwrap", LIMITS)
    assert set(points(record).values()) == {0.0}
    assert said(record).count("is not written yet") == 3


def test_code_is_compiled_behind_the_wall_and_its_faults_are_told(tmp_path):
    needs("bwrap")
    with fresh_course(tmp_path, lambda root: make_kernel_course(root, LOOKS_AT_CODE)) as lab:
        assert points(grade(lab, submission(lab), "bwrap", LIMITS))["softmax"] == 40
        interpreted_only = answers(before="LOWEST = -1e30", kernel=KERNEL.replace('float("-inf")', "LOWEST"))
        record = grade(lab, submission(lab, softmax=interpreted_only), "bwrap", LIMITS)
        assert points(record) == {"softmax": 0.0, "column_sums": 40.0, "mean": 20.0}
        assert "softmax_kernel does not compile for sm_90 (cell, line 6)" in said(record)


CONFINED = """
import os, socket, subprocess, torch
from threeloops_grader.wall.replays import confine

readable = os.open("/etc/passwd", os.O_RDONLY)
pid = os.getpid()
confine(512)

def tried(*ways):
    for way in ways:
        try:
            way()
        except PermissionError:
            continue
        yield getattr(way, "__name__", way)

def a_file(): open("x", "w")
def an_append(): open("/etc/passwd", "a")
def a_folder(): os.mkdir("x")
def a_removal(): os.unlink("/nowhere")
def a_new_name(): os.rename("/nowhere", "/elsewhere")
def a_socket(): socket.socket()
def a_pair(): socket.socketpair()
def a_fork(): os.fork()
def a_program(): os.execv("/bin/true", ["true"])
def a_signal(): os.kill(pid, 0)

print(list(tried(a_file, an_append, a_folder, a_removal, a_new_name, a_socket, a_pair, a_fork, a_program, a_signal)))
print(len(open("/etc/passwd").read()) > 0, float(torch.ones(256, 256).mm(torch.ones(256, 256)).sum()))
try:
    bytearray(1 << 30)
except MemoryError:
    print("no memory")
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no filter for this architecture")
def test_a_process_that_executes_kernels_can_do_nothing_else(tmp_path):
    variables = environment({"OMP_NUM_THREADS": "1"})
    command = [sys.executable, "-c", CONFINED]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.stdout == f"[]\nTrue {256**3:.1f}\nno memory\n", done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_for_kernels_jumps_forward_and_ends(machine):
    code = seccomp._program(machine, kernels_only=True)
    assert len(code) < 256
    for at, (operation, yes, no, _) in enumerate(code):
        assert at + 1 + max(yes, no) < len(code) or operation == 0x06
    assert len(code) > len(seccomp._program(machine))


def test_warm_processes_import_what_the_labs_setup_imports(lab):
    modules = _modules_of(lab)
    assert {"torch", "triton", "triton.language", "threeloops.inner.interpreter", REPLAY} <= set(modules)
    assert COMPILER not in modules
    assert _without_withheld(["a", "a.b", "ab", "c"], ["a"]) == ["ab", "c"]


def test_labs_that_make_an_optimizer_have_its_imports_warm():
    for lab in map(find_lab, ("06", "13")):
        assert COMPILER in _modules_of(lab)


LINTED = {
    "a kernel of setup": (
        ("@triton.jit\ndef softmax_kernel", "def softmax_kernel"),
        "softmax_test replays kernels, and softmax defines none (@triton.jit, top level)",
    ),
    "a kernel that is not admitted": (
        ("row, offsets = tl.program_id(0)", "row, offsets = print(0)"),
        "softmax is replayed and is not admitted: line 4: softmax_kernel uses a call of print",
    ),
}


@pytest.mark.parametrize("name", LINTED)
def test_a_lab_whose_reference_cannot_be_replayed_is_not_released(tmp_path, name):
    (old, new), says = LINTED[name]
    lab = make_kernel_course(tmp_path, SOURCE.replace(old, new))
    assert any(says in message for message in lint(lab)), lint(lab)
    assert not any("replay" in message for message in lint(make_kernel_course(tmp_path / "sound")))
