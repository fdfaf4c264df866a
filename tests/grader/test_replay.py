# ruff: noqa: E501 (the text of a cell stands on one line)
"""Replay through the wall: a kernel earns the points, and nothing that only looks like one.

Each answer replaces the cell `softmax` (40 points) of an otherwise honest submission; `column_sums` (40) and `mean`
(20) must be graded as ever. Exploits fail with a message that names the fault; honest programs of every style pass.
"""

import platform
import subprocess
import sys
from dataclasses import replace
from textwrap import dedent

import pytest
from grading import QUICK, SANDBOXES, fresh_course, grade, needs, points, said, submission
from toy_kernel_lab import LOOKS_AT_CODE, SOURCE, make_kernel_course

from grader.child import environment
from grader.lint import lint
from grader.sandbox import seccomp
from grader.sandbox.warmth import REPLAY, modules_of, without_withheld

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
COPY = """
@triton.jit
def copy_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)
"""
NOTHING = """
@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    pass
"""


def forged(plan):
    """The recording replaced by one that answers with a plan of its own making."""
    return answers(
        after=f"""
        import threeloops.lab.replay, sys

        def place(storage, shape, strides, offset=0):
            return {{"place": dict(storage=storage, dtype="float32", shape=shape, strides=strides, offset=offset)}}

        def launch(out=place(1, [4, 32], [32, 1]), kernel="softmax_kernel", grid=[4, 1, 1], **more):
            arguments = dict(x=place(0, [4, 32], [32, 1]), out=out, columns=32)
            return dict(do="launch", kernel=kernel, grid=grid, arguments=arguments, constants=dict(BLOCK=32), options={{}}, **more)

        allocate, out = dict(do="allocate", dtype="float32", elements=128), place(1, [4, 32], [32, 1])
        sys.modules["threeloops.lab.replay"].record = lambda launcher, inputs: {plan}
        """
    )


EXPLOITS = {
    "computes with torch": (answers(launcher="def softmax(x): return torch.softmax(x, -1)"), "by torch.softmax"),
    "computes with torch piece by piece": (
        answers(launcher="def softmax(x): e = x.exp(); return e / e.sum(-1, keepdim=True)"),
        "torch made, by torch.div",
    ),
    "returns its input": (answers(launcher="def softmax(x): return x"), "launches no kernel"),
    "launches nothing": (answers(launcher="def softmax(x): return torch.empty_like(x)"), "launches no kernel"),
    "launches one kernel and returns what torch computed": (
        answers(
            launcher="""
            def softmax(x):
                out = torch.empty_like(x)
                softmax_kernel[(1,)](x, out, x.shape[1], BLOCK=256)
                return torch.softmax(x, -1)
            """
        ),
        "returns a tensor that torch made, by torch.softmax",
    ),
    "lets a kernel copy what torch computed": (
        answers(
            COPY,
            """
            def softmax(x):
                y, out = torch.softmax(x, -1), torch.empty_like(x)
                copy_kernel[(1,)](y, out, x.numel(), BLOCK=1024)
                return out
            """,
        ),
        "gives copy_kernel a tensor that torch made, by torch.softmax",
    ),
    "lets torch overwrite what the kernel wrote": (
        answers(launcher=LAUNCHER.replace("return out", "return torch.softmax(x, -1, out=out)")),
        "torch made, by torch.softmax",
    ),
    "computes in place on the result": (
        answers(COPY, LAUNCHER.replace("softmax_kernel[(x.shape[0],)]", "copy_kernel[(1,)]")
                .replace("x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1])", "x.numel(), BLOCK=1024")
                .replace("return out", "return out.exp_()")),
        "by torch.exp_",
    ),
    "launches a kernel that does nothing": (answers(NOTHING), "no kernel wrote"),
    "launches no program": (answers(launcher=LAUNCHER.replace("(x.shape[0],)", "(0,)")), "no kernel wrote"),
    "copies its input and lets the kernel touch it": (
        answers(
            """
            @triton.jit
            def touch(x):
                tl.store(x, tl.load(x))
            """,
            "def softmax(x):\n    out = x.clone()\n    touch[(1,)](out)\n    return out",
        ),
        "returns a copy of its input of which no launch wrote more than 4 of 512 bytes",
    ),
    "keeps results from call to call": (
        answers(
            before="RESULTS = {}",
            launcher="""
            def softmax(x):
                if x.shape not in RESULTS:
                    RESULTS[x.shape] = torch.empty_like(x)
                return RESULTS[x.shape]
            """,
        ),
        "launches no kernel",
    ),
    "looks results up in a table": (
        answers(before="TABLE = torch.rand(4096)", launcher=LAUNCHER.replace("return out", "return TABLE[: x.numel()].view_as(x)")),
        "returns a tensor that it neither was given nor allocated",
    ),
    "gives the kernel a table": (
        answers(before="TABLE = torch.rand(4096)", launcher=LAUNCHER.replace("(x, out,", "(TABLE, out,")),
        "gives softmax_kernel a tensor that it neither was given nor allocated",
    ),
    "copies a table into its own tensor": (
        answers(
            before="TABLE = torch.rand(4096)",
            launcher=LAUNCHER.replace("    softmax_kernel", "    x.copy_(TABLE[: x.numel()].view_as(x))\n    softmax_kernel")
            .replace("x.contiguous()", "torch.empty_like(x)"),
        ),
        "neither was given nor allocated",
    ),
    "decides by values": (answers(launcher=LAUNCHER.replace("    out =", "    if x.sum() > 0: print()\n    out =")), "reads values"),
    "reads values by item": (answers(launcher=LAUNCHER.replace("    out =", "    y = x[0, 0].item()\n    out =")), "by item()"),
    "reads values and hides it": (
        answers(launcher=LAUNCHER.replace("    out =", "    try: x.tolist()\n    except BaseException: pass\n    out =")),
        "reads values of a tensor by tolist()",
    ),
    "reads values through numpy": (answers(launcher=LAUNCHER.replace("    out =", "    x.numpy()\n    out =")), "by numpy()"),
    "changes its input with torch": (
        answers(launcher=LAUNCHER.replace("x = x.contiguous()", "x.sub_(1)")),
        "changes its input in place with torch (torch.sub_)",
    ),
    "returns a number": (answers(launcher=LAUNCHER.replace("return out", "return 3.0")), "returns a float"),
    "returns nothing": (answers(launcher=LAUNCHER.replace("return out", "return None")), "returns no tensor"),
    "reads beyond the end": (
        answers(KERNEL.replace(', mask=offsets < columns, other=float("-inf"))', ")"), LAUNCHER.replace("x.shape[0],)", "x.shape[0] + 1,)")),
        "out-of-bounds in softmax_kernel",
    ),
    "writes beyond the end": (
        answers(KERNEL.replace("tl.sum(exponentials, 0), mask=offsets < columns)", "tl.sum(exponentials, 0))"),
                LAUNCHER.replace("triton.next_power_of_2(x.shape[1])", "256")),
        "out-of-bounds in softmax_kernel",
    ),
    "reads memory that is no argument": (
        answers(KERNEL.replace("tl.load(x + row", "tl.load(x - (1 << 44) + row")),
        "out-of-bounds in softmax_kernel",
    ),
    "lets programs race": (
        answers(KERNEL.replace("tl.store(out + row * columns + offsets,", "tl.store(out + offsets,")),
        "write-race in softmax_kernel",
    ),
    "reads its input twice": (
        answers(KERNEL.replace("    tl.store", "    tl.load(x + row * columns + offsets, mask=offsets < columns)\n    tl.store")),
        "x is read twice",
    ),
    "forges the meter": (
        answers(
            KERNEL.replace("    tl.store", "    tl.load(x + row * columns + offsets, mask=offsets < columns)\n    tl.store"),
            after="""
            import threeloops.inner.meter as m, threeloops.inner.bench.meter.traffic as t, threeloops.inner.bench.plan.records as r
            m.meter = m.traffic_of = t.together = r.from_plain = r.to_plain = lambda *a, **k: None
            t.Traffic.requested_bytes = property(lambda self: 0)
            """,
        ),
        "x is read twice",
    ),
    "patches triton": (
        answers(
            NOTHING,
            after="""
            from triton.runtime.interpreter import InterpretedFunction
            def run(self, x, out, *args, grid, warmup, **kwargs):
                out.copy_(torch.softmax(x, -1))
            InterpretedFunction.run = run
            """,
        ),
        "no kernel wrote",
    ),
    "makes triton's decorator its own": (
        answers(
            before="""
            class Kernel:
                def __init__(self, function): pass
                def __getitem__(self, grid): return lambda x, out, *rest, **constants: out.copy_(torch.softmax(x, -1))
            triton.jit = Kernel
            """
        ),
        "returns a tensor that torch made, by torch.softmax",
    ),
    "is not admitted: np": (answers(KERNEL.replace("row, offsets", "np.load('x')\n    row, offsets")), "line 3: softmax_kernel uses the name 'np'"),
    "is not admitted: a second definition in the docstring": (
        answers(
            '''
            @triton.jit
            def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
                """
            def softmax_kernel(x, out, columns, BLOCK):
                __import__("os").abort()
                #"""
            '''
        ),
        "no kernel wrote",
    ),
    "is not admitted: libdevice": (
        answers(KERNEL.replace("tl.exp(", "tl.extra.cuda.libdevice.exp(")),
        "line 5: softmax_kernel uses tl.extra",
    ),
    "has two kernels of one name": (answers(KERNEL + "\n\n" + NOTHING), "defines softmax_kernel 2 times (lines 2, "),
    "binds the kernel's name anew": (answers(after="other = softmax_kernel\nsoftmax_kernel = other"), "defines softmax_kernel 2 times"),
    "defines its kernel by exec": (
        answers("exec('''@triton.jit\ndef softmax_kernel(x, out, columns, BLOCK: tl.constexpr):\n    pass''')"),
        "launches 'softmax_kernel', which its cell does not define",
    ),
    "defines its kernel in a class": (
        answers("class K:\n    @triton.jit\n    def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):\n        pass",
                LAUNCHER.replace("softmax_kernel[", "K.softmax_kernel[")),
        "which its cell does not define",
    ),
    "calls its kernel something else": (
        answers(after="softmax_kernel.fn.__name__ = 'another'"),
        "launches 'another', which its cell does not define",
    ),
    "launches with constants of another text": (
        answers(after="exec('''@triton.jit\ndef softmax_kernel(x, out, columns, WIDTH: tl.constexpr, BLOCK: tl.constexpr):\n    pass''')",
                launcher=LAUNCHER.replace("x.shape[1], BLOCK", "x.shape[1], WIDTH=1, BLOCK")),
        "arguments that its cell's text does not have",
    ),
    "fails in its kernel": (answers(KERNEL.replace("tl.max(values, 0)", "tl.max(values, 7)")), "fails, line 5 of its cell"),
    "takes more memory than there is": (
        answers(
            """
            @triton.jit
            def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
                for kept in ((columns,),):
                    while columns > 0:
                        kept += kept
            """
        ),
        "emory",
    ),
    "launches too many programs": (answers(launcher=LAUNCHER.replace("(x.shape[0],)", "(1 << 30,)")), "1,073,741,824 programs"),
    "launches too often": (
        answers(launcher=LAUNCHER.replace("    softmax_kernel", "    for _ in range(1000): softmax_kernel")),
        "launches",
    ),
    "is not written": ("def softmax(x):\n    raise NotImplementedError()\n", "softmax is not written yet"),
    "raises": (answers(launcher="def softmax(x): raise ValueError('no idea')"), "ValueError: no idea"),
    "forges a plan: nonsense": (forged("[1, 2, 3]"), "a form that cannot be read"),
    "forges a plan: no steps": (forged("{'steps': 5, 'outputs': None}"), "a form that cannot be read (steps)"),
    "forges a plan: an unknown step": (forged("{'steps': [{'do': 'eval', 'code': '1'}, launch()], 'outputs': None}"), "cannot be read"),
    "forges a plan: steps without end": (forged("{'steps': [allocate] * 5000, 'outputs': None}"), "5,000 steps"),
    "forges a plan: a huge allocation": (
        forged("{'steps': [dict(allocate, elements=1 << 50), launch()], 'outputs': out}"),
        "allocates 4,294,967,296 MiB",
    ),
    "forges a plan: a huge grid": (forged("{'steps': [allocate, launch(grid=[1 << 30] * 3)], 'outputs': out}"), "programs"),
    "forges a plan: a negative grid": (forged("{'steps': [allocate, launch(grid=[-1, 1, 1])], 'outputs': out}"), "cannot be read"),
    "forges a plan: a tensor beyond its storage": (
        forged("{'steps': [allocate, launch(place(1, [4, 32], [32, 1], 1))], 'outputs': out}"),
        "outside of its storage",
    ),
    "forges a plan: a negative offset": (forged("{'steps': [allocate, launch(place(1, [1], [1], -8))], 'outputs': out}"), "cannot be read"),
    "forges a plan: a storage that is not there": (forged("{'steps': [allocate, launch(place(7, [1], [1]))], 'outputs': out}"), "cannot be read"),
    "forges a plan: another kernel": (forged("{'steps': [allocate, launch(kernel='print')], 'outputs': out}"), "launches 'print'"),
    "forges a plan: a kernel that is no name": (forged("{'steps': [allocate, launch(kernel=[1])], 'outputs': out}"), "which its cell does not define"),
    "forges a plan: the input as output": (forged("{'steps': [allocate, launch()], 'outputs': place(0, [4, 32], [32, 1])}"), "no kernel wrote"),
    "forges a plan: a write into the input": (
        forged("{'steps': [allocate, dict(do='fill', to=place(0, [4, 32], [32, 1]), value=1), launch()], 'outputs': out}"),
        "changes its input in place",
    ),
    "forges a plan: constants that are code": (
        forged("{'steps': [allocate, dict(launch(), constants=dict(BLOCK=dict(function=['os', 'abort'])))], 'outputs': out}"),
        "cannot be read (a constant)",
    ),
    "forges a plan: a refusal that is no text": (forged("{'refused': [1] * 10}"), "replay: softmax [1, 1"),
    "forges a plan: dying on the way": (forged("__import__('os')._exit(0)"), "process was lost"),
}  # fmt: skip

KEEPS_ITS_OTHER_POINTS = {name for name in EXPLOITS if "forge" not in name and "triton" not in name}


@pytest.mark.parametrize("name", EXPLOITS)
def test_an_exploit_earns_nothing(lab, name):
    needs("bwrap")
    answer, says = EXPLOITS[name]
    record = grade(lab, submission(lab, softmax=answer), "bwrap", LIMITS)
    earned = points(record)
    assert earned["softmax"] == 0, said(record)
    assert says in said(record), said(record)
    assert earned["mean"] == 20, said(record)
    if name in KEEPS_ITS_OTHER_POINTS:
        assert earned["column_sums"] == 40, said(record)


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


def test_a_loop_without_end_costs_its_own_points_only(lab):
    needs("bwrap")
    endless = answers(KERNEL.replace("    tl.store", "    while columns > 0:\n        columns += 0\n    tl.store"))
    record = grade(lab, submission(lab, softmax=endless), "bwrap", replace(LIMITS, test_seconds=15))
    assert points(record) == {"softmax": 0.0, "column_sums": 40.0, "mean": 20.0}, said(record)
    assert "softmax did not end within 3 s" in said(record)


SUMS = {
    "sums with torch alone": ("return x.sum(0), torch.empty(3, 33)", "launches no kernel"),
    "sums its input with torch beside a kernel": (
        "part = torch.empty(3, 33)\n    partial_sums[(3,)](x, part, 10, 33, ROWS=4, BLOCK=64)\n    return x.sum(0), part",
        "sums with torch what no kernel wrote",
    ),
    "sums a copy of its input": (
        "part = x.clone()\n    partial_sums[(3,)](x, part, 10, 33, ROWS=4, BLOCK=64)\n    return part.sum(0), part",
        "sums with torch what no kernel wrote",
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_torch_are_for_partial_results(lab, name):
    needs("bwrap")
    body, says = SUMS[name]
    kernel = next(c.source for c in lab.master().cells if c.id == "column_sums").partition("@triton.jit")[2]
    answer = f"@triton.jit{kernel}\n\ndef column_sums(x, *, block_rows=4):\n    {body}\n"
    record = grade(lab, submission(lab, column_sums=answer), "bwrap", LIMITS)
    assert points(record) == {"softmax": 40.0, "column_sums": 0.0, "mean": 20.0}, said(record)
    assert says in said(record), said(record)


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
from grader.wall.replays import confine

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
    code = seccomp.program(machine, kernels_only=True)
    assert len(code) < 256
    for at, (operation, yes, no, _) in enumerate(code):
        assert at + 1 + max(yes, no) < len(code) or operation == 0x06
    assert len(code) > len(seccomp.program(machine))


def test_warm_processes_import_what_the_labs_setup_imports(lab):
    modules = modules_of(lab)
    assert {"torch", "triton", "triton.language", "threeloops.inner.interpreter", REPLAY} <= set(modules)
    assert without_withheld(["a", "a.b", "ab", "c"], ["a"]) == ["ab", "c"]


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
