# ruff: noqa: E501 (a cell's metadata stands on one line)
"""A course of one small lab about kernels: two exercises that are replayed, and one that has nothing to do with them.

`91_kernels`: `softmax` (40 points), `column_sums` with partial sums (40 points), `mean` (20 points).
"""

from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SLUG = "91_kernels"

SOURCE = '''\
# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3 (ipykernel), language: python, name: python3}
#   threeloops:
#     title: A toy with kernels
#     minutes: 5
#     withholds: [threeloops.inner.meter.metering, threeloops.inner.kernels.rows.softmax]
# ---

# %% [markdown]
# # A toy with kernels

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import torch
import triton
import triton.language as tl
from threeloops.inner import interpreter
from threeloops.lab import check, replay

interpreter.enable_without_gpu()

# %% nbgrader={"grade": false, "grade_id": "softmax", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    ### BEGIN SOLUTION
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + offsets, mask=offsets < columns, other=float("-inf"))
    exponentials = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, 0), mask=offsets < columns)
    ### END SOLUTION


def softmax(x):
    """Softmax over the last dimension of a matrix."""
    ### BEGIN SOLUTION
    x = x.contiguous()
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "softmax_test", "locked": true, "points": 40, "schema_version": 3, "solution": false, "task": false}
def matrix(seed, rows, columns):
    return torch.from_numpy(check.rng(seed).normal(size=(rows, columns))).float()


with check("softmax", "softmax by one kernel"):
    x = matrix(0, 4, 32)
    run = replay(softmax, x)
    check.close(run.outputs, torch.softmax(x.double(), -1), rtol=1e-5, what="softmax")
    ### BEGIN HIDDEN TESTS
    for rows, columns in ((1, 1), (3, 127), (2, 129)):
        x = matrix(columns, columns, rows).t()
        run = replay(softmax, x)
        check.close(run.outputs, torch.softmax(x.double(), -1), rtol=1e-5, what=f"softmax of {rows} rows of {columns}")
        run.require(torch.softmax(x.double(), -1))
        bytes_needed = 2 * 4 * rows * columns
        check.close(run.traffic.total.requested_bytes, bytes_needed, rtol=0.02, what="bytes", hint="x is read twice")
        check.true(len(run.launches) == 1, f"{len(run.launches)} launches: one kernel does it")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": false, "grade_id": "column_sums", "locked": false, "schema_version": 3, "solution": true, "task": false}
def column_sums(x, *, block_rows=4):
    """Sums over the rows of a matrix, by partial sums of blocks of rows."""
    ### BEGIN SOLUTION
    rows, columns = x.shape
    partial = torch.empty(triton.cdiv(rows, block_rows), columns, device=x.device)
    partial_sums[(partial.shape[0],)](x, partial, rows, columns, ROWS=block_rows, BLOCK=triton.next_power_of_2(columns))
    return partial.sum(0), partial
    ### END SOLUTION


@triton.jit
def partial_sums(x, partial, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    ### BEGIN SOLUTION
    block, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(ROWS):
        row = block * ROWS + i
        total += tl.load(x + row * columns + offsets, mask=(offsets < columns) & (row < rows), other=0.0)
    tl.store(partial + block * columns + offsets, total, mask=offsets < columns)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "column_sums_test", "locked": true, "points": 40, "schema_version": 3, "solution": false, "task": false}
with check("column_sums", "column sums by partial sums"):
    x = torch.from_numpy(check.rng(0).normal(size=(10, 33))).float()
    sums, partial = replay(column_sums, x).outputs
    check.close(sums, x.double().sum(0), rtol=1e-4, atol=1e-5, what="sums")
    ### BEGIN HIDDEN TESTS
    run = replay(column_sums, x, block_rows=2)
    check.shape(run.outputs[1], (5, 33), what="partial sums")
    check.close(run.outputs[0], x.double().sum(0), rtol=1e-4, atol=1e-5, what="sums of blocks of 2")
    run.require((x.double().sum(0), x.double().unflatten(0, (5, 2)).sum(1)))
    check.true(run.torch_bytes <= 4 * 33 * 6, f"torch moves {run.torch_bytes} bytes: only the partial sums are left to it")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": false, "grade_id": "mean", "locked": false, "schema_version": 3, "solution": true, "task": false}
def mean(values):
    """The arithmetic mean."""
    ### BEGIN SOLUTION
    return sum(values) / len(values)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "mean_test", "locked": true, "points": 20, "schema_version": 3, "solution": false, "task": false}
with check("mean", "the mean of a list"):
    check.close(mean([1.0, 2.0, 6.0]), 3.0, what="mean")
    ### BEGIN HIDDEN TESTS
    check.close(mean([1.0]), 1.0, what="mean of one")
    ### END HIDDEN TESTS

# %% [markdown]
# What did the kernel save?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# A pass over memory.
'''


LOOKS_AT_CODE = SOURCE.replace(
    "    ### BEGIN HIDDEN TESTS\n",
    """\
    run = replay(softmax, torch.zeros(4, 128)).require(torch.full((4, 128), 1 / 128))
    check.true(run.code("sm_90")[0].spilled_bytes == 0, "the kernel spills")
    ### BEGIN HIDDEN TESTS
""",
    1,
)
"""The lab with a test that also compiles the kernel."""


def make_kernel_course(root: Path, source: str = SOURCE) -> Lab:
    """Write `solutions/91_kernels/` below `root` and return its `Lab`."""
    lab = Lab(SLUG, root)
    lab.folder.mkdir(parents=True)
    lab.source.write_text(source, encoding="utf-8")
    return lab
