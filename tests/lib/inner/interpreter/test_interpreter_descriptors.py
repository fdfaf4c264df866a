"""Atomic operations of tensor descriptors: they change the elements within the shape, and are metered as atomics."""

import pytest
import torch
import triton
import triton.language as tl
from threeloops.inner.meter import meter  # switches on the interpreter

OPERATIONS = {
    "add": torch.add, "min": torch.minimum, "max": torch.maximum, "and": torch.bitwise_and, "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}  # fmt: skip
TAKEN = {
    torch.float32: ["add"],
    torch.float16: ["add", "min", "max"],
    torch.bfloat16: ["add", "min", "max"],
    torch.int32: [*OPERATIONS],
    torch.int64: ["min", "max", "and", "or", "xor"],
    torch.uint32: [*OPERATIONS],
}
"""What the language takes, as `tl.tensor_descriptor` documents it."""


@triton.jit
def combine(x, out, rows, OPERATION: tl.constexpr):
    block = tl.make_tensor_descriptor(out, shape=[rows, 16], strides=[16, 1], block_shape=[8, 16])
    tile = tl.load(x + tl.arange(0, 8)[:, None] * 16 + tl.arange(0, 16)[None, :])
    if OPERATION == "add":
        block.atomic_add([4, 0], tile)
    elif OPERATION == "min":
        block.atomic_min([4, 0], tile)
    elif OPERATION == "max":
        block.atomic_max([4, 0], tile)
    elif OPERATION == "and":
        block.atomic_and([4, 0], tile)
    elif OPERATION == "or":
        block.atomic_or([4, 0], tile)
    else:
        block.atomic_xor([4, 0], tile)


@pytest.mark.parametrize(
    ("dtype", "operation"),
    [(dtype, operation) for dtype, operations in TAKEN.items() for operation in operations],
    ids=str,
)
def test_a_block_is_combined_with_the_elements_within_the_shape(dtype, operation):
    torch.manual_seed(0)
    x, out = (torch.randint(-50, 50, (rows, 16)).abs().to(dtype) for rows in (8, 10))
    if dtype.is_signed:
        x, out = x - 30, out - 30
    expected = out.clone()
    wide = [each.long() if dtype == torch.uint32 else each for each in (out[4:], x[:6])]
    expected[4:] = OPERATIONS[operation](*wide).to(dtype)
    with meter() as traffic:
        combine[(1,)](x, out, 10, OPERATION=operation)
    assert torch.equal(out, expected)
    assert traffic.total.atomics == 6 * 16, "the block's last two rows lie outside the shape"
    assert traffic.total.requested_loaded == (8 + 6) * 16 * dtype.itemsize
    assert traffic.total.requested_stored == 6 * 16 * dtype.itemsize
    assert traffic.findings == []
