"""Kernels with one fault each, of the kinds that public code has had. Their values are not compared."""

import torch
import triton
import triton.language as tl

from kernels import FP32, INT64, case
from kernels.elementwise import add_kernel
from kernels.rows import kl_kernel


@triton.jit
def plain_sum_kernel(x, out, BLOCK: tl.constexpr):
    value = tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.store(out, tl.load(out) + tl.sum(value))


@case(loaded=FP32 * (4 * 16 + 1), stored=FP32, faults=("read-write-race", "write-race"))
def sum_without_atomics():
    """Let every program add to one number by a load and a store."""
    x, out = torch.randn(64), torch.zeros(1)
    plain_sum_kernel[(4,)](x, out, BLOCK=16)


@triton.jit
def overlapping_kernel(x, out, STEP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * STEP + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) + tl.program_id(0))


@case(loaded=FP32 * 40, stored=FP32 * 40, faults=("write-race",))
def overlapping_blocks():
    """Step by less than a block, so that two programs store to the same addresses."""
    x, out = torch.randn(40), torch.empty(40)
    overlapping_kernel[(4,)](x, out, STEP=8, BLOCK=16)


@triton.jit
def unmasked_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at))


@case(loaded=FP32 * 40, stored=FP32 * 40, faults=("out-of-bounds",))
def missing_mask():
    """Load and store past the end, because the length is not a multiple of the block."""
    x, out = torch.randn(40), torch.empty(40)
    unmasked_kernel[(3,)](x, out, BLOCK=16)


@triton.jit
def unpadded_mean_kernel(x, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + tl.program_id(0) * columns + at, mask=at < columns)
    tl.store(out + tl.program_id(0), tl.sum(value) / columns)


@case(loaded=FP32 * 3 * 10, stored=FP32 * 3, faults=("undefined-lane",))
def mean_with_undefined_padding():
    """Sum a row without saying what stands in the masked lanes."""
    x, out = torch.randn(3, 10), torch.empty(3)
    unpadded_mean_kernel[(3,)](x, out, 10, BLOCK=16)


@case(loaded=FP32 * (2 * 4 * 20 + 1), stored=FP32, faults=("uninitialised-read",))
def sum_that_starts_anywhere():
    """Add atomically to memory that nobody set to zero."""
    student, teacher = torch.randn(4, 20).log_softmax(1), torch.randn(4, 20).softmax(1)
    loss = torch.empty(1)
    kl_kernel[(4,)](student, teacher, loss, 20, BLOCK=32, LOG_TARGET=False)


@triton.jit
def scatter_kernel(x, index, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + tl.load(index + at), tl.load(x + at))


@case(loaded=(FP32 + INT64) * 8, stored=FP32 * 4, faults=("store-conflict",))
def scatter_to_equal_places():
    """Store different numbers to one place in a single store."""
    x, index, out = torch.randn(8), torch.arange(8) // 2, torch.zeros(8)
    scatter_kernel[(1,)](x, index, out, BLOCK=8)


@triton.jit
def checked_gather_kernel(x, index, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    place = tl.load(index + at)
    tl.device_assert(place < n, "index out of range")
    tl.store(out + at, tl.load(x + place, mask=place < n, other=0.0))


@case(loaded=FP32 * 3 + INT64 * 4, stored=FP32 * 4, faults=("failed-assert",))
def assertion_that_fails():
    """Assert on the device that indices are in range, which one is not."""
    x, index, out = torch.randn(8), torch.tensor([0, 3, 8, 7]), torch.empty(4)
    checked_gather_kernel[(1,)](x, index, out, 8, BLOCK=4)


@case(loaded=FP32 * 101, stored=FP32 * 100, faults=("read-write-race",))
def shift_in_place():
    """Add to a vector its own left neighbours, in place, while another program may have stored them already."""
    x = torch.randn(101)
    add_kernel[(7,)](x[1:], x, x[1:], 100, BLOCK=16)
