"""Parts of hostile recordings: the honest answer, and a recorder that sends the recording that the attack defines.

The attack's text follows: `recording`, a function without arguments.
"""

import sys

import threeloops.lab.checking.replay  # noqa: F401 (patched below)
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + offsets, mask=offsets < columns, other=float("-inf"))
    exponentials = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, 0), mask=offsets < columns)


def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


def view(storage, shape, strides, offset=0):
    where = {"shape": shape, "strides": strides, "offset": offset}
    return {"kind": "view", "storage": storage, "dtype": "float32", **where}


allocate, out = {"kind": "allocate", "dtype": "float32", "elements": 128}, view(1, [4, 32], [32, 1])


def launch(out=out, kernel="softmax_kernel", grid=(4, 1, 1), **more):
    step = {"kind": "launch", "kernel": kernel, "grid": list(grid), "constants": {"BLOCK": 32}, "options": {}}
    step["arguments"] = {"x": view(0, [4, 32], [32, 1]), "out": out, "columns": 32}
    return {**step, **more}


sys.modules["threeloops.lab.checking.replay"]._record = lambda launcher, inputs: recording()  # noqa: F821 (the attack defines it)
