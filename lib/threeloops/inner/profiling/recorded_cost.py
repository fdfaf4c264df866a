"""Bytes and FLOPs of one recorded operator call, from the shapes, types and allocations in the trace.

Bytes are the compulsory traffic, with every input read once and every output written once; measured traffic can only be
higher. FLOPs count a multiply-add as two and, like `torch.utils.flop_counter`, only matmuls, convolutions and
attention, because elsewhere the arithmetic never decides the time.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from math import prod

from threeloops.inner.profiling.trace import ALLOCATION, MEMORY, Call, Event

__all__ = ["compulsory_bytes", "flops", "memory_events"]

_ELEMENT_BYTES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
    "c10::Float8_e8m0fnu": 1, "c10::complex<float>": 8, "c10::complex<double>": 16, "bool": 1,
    "long int": 8, "int": 4, "short int": 2, "signed char": 1,
    "long unsigned int": 8, "unsigned int": 4, "short unsigned int": 2, "unsigned char": 1,
}  # fmt: skip
_LIST_ELEMENT_BYTES = 4  # an assumption: the recorder notes the shapes of a list of tensors, not their type

_NOTHING_WRITTEN = ("aten::empty", "aten::new_empty", "aten::resize_")
_OVERWRITE = {"aten::zero_", "aten::fill_"}
_FILL = {"aten::zeros", "aten::ones", "aten::full", "aten::zeros_like", "aten::ones_like", "aten::full_like"}
_JOIN = {"aten::cat", "aten::stack"}
_LOOK_UP = {"aten::embedding", "aten::index", "aten::index_select", "aten::gather"}  # these read some rows of a table


def compulsory_bytes(call: Call, memory: Sequence[Event]) -> int | None:
    """Return the bytes that `call` must at least read and write, or None if the trace does not tell.

    memory: `memory_events` of the device on which the operator works. Memory that was allocated in the call and
    outlives it is its output. An operator that allocates and changes nothing returned a view, which takes 0 bytes. An
    in-place operator writes its first argument. The trace does not tell for compiled graphs and autograd nodes, whose
    work is recorded in their callees or not at all. Nor does it tell without shapes or allocations.
    """
    name = call.name
    if "Input Dims" not in call.event.args or (call.children and not call.is_aten):
        return None
    inputs = _input_bytes(call.event)
    if not call.is_aten:
        return sum(inputs) + _outliving_bytes(call.event, memory)  # a custom kernel: outputs are among its arguments
    if name.startswith(_NOTHING_WRITTEN):
        return 0
    if name == "aten::copy_":
        return inputs[0] + inputs[1]
    if name in _OVERWRITE:
        return inputs[0]
    if name.endswith("_"):
        return sum(inputs) + inputs[0]
    if not memory:
        return None
    written = _outliving_bytes(call.event, memory)
    if name in _FILL:
        return written
    if name in _JOIN:
        return 2 * written
    if name in _LOOK_UP:
        return 2 * written + sum(inputs[1:])
    return sum(inputs) + written if written or flops(call) else 0


def _input_bytes(event: Event) -> list[int]:
    """Return the bytes of each tensor argument (0 for numbers). A dimension that is only repeated (stride 0) is read
    once."""
    dims = event.args.get("Input Dims", [])
    types = event.args.get("Input type", [])
    strides = event.args.get("Input Strides", [[]] * len(dims))
    sizes = []
    for shape, kind, stride in zip(dims, types, strides, strict=False):
        if kind == "TensorList":
            sizes.append(sum(prod(tensor) for tensor in shape) * _LIST_ELEMENT_BYTES)
        elif kind in _ELEMENT_BYTES:
            repeated = len(stride) == len(shape)
            elements = prod(size for index, size in enumerate(shape) if not (repeated and stride[index] == 0))
            sizes.append(elements * _ELEMENT_BYTES[kind])
        else:
            sizes.append(0)
    return sizes


def _outliving_bytes(event: Event, memory: Sequence[Event]) -> int:
    """Return the bytes allocated during `event`, on its thread, and still held when it ends."""
    first = bisect_left(memory, event.start_us, key=lambda change: change.start_us)
    last = bisect_right(memory, event.end_us, key=lambda change: change.start_us)
    held: dict[int, int] = {}
    for change in memory[first:last]:
        if change.thread != event.thread:
            continue
        if change.args["Bytes"] > 0:
            held[change.args["Addr"]] = change.args["Bytes"]
        else:
            held.pop(change.args["Addr"], None)
    return sum(held.values())


def memory_events(events: Iterable[Event], device: str) -> list[Event]:
    """Return allocations (Bytes > 0) and frees (Bytes < 0) on "cpu" or on the GPU, in the order of their time."""
    changes = [event for event in events if event.category == MEMORY and event.name == ALLOCATION]
    there = [event for event in changes if (event.args.get("Device Type", 0) == 0) == (device == "cpu")]
    return sorted(there, key=lambda event: event.start_us)


def flops(call: Call) -> int:
    """Count the FLOPs of `call` and its callees. The formula of the outermost operator that has one covers those below
    it."""
    formula = _FORMULAS.get(call.name)
    if call.name.startswith(("aten::_scaled_dot_product", "aten::scaled_dot_product_attention")):
        formula = _attention_backward if call.name.endswith("_backward") else _attention
    if formula is not None and "Input Dims" in call.event.args and (counted := formula(call.event)) is not None:
        return counted
    return sum(flops(child) for child in call.children)


def _matmul(left: int, right: int) -> Callable[[Event], int]:
    """Return a function that counts the FLOPs of the product of arguments `left` (… m k) and `right` (… k n, or k)."""

    def count(event: Event) -> int:
        a = event.args["Input Dims"][left]
        b = event.args["Input Dims"][right]
        return 2 * prod(a) * (b[-1] if len(b) > 1 else 1)

    return count


def _convolution(event: Event) -> int | None:
    """Count the FLOPs of a convolution. Arguments: input, weight, bias, stride, padding, dilation, then `transposed`
    (aten::convolution) or groups."""
    x, weight = event.args["Input Dims"][:2]
    concrete = event.args.get("Concrete Inputs", [])
    if concrete[6:7] == ["True"]:
        return 2 * x[0] * prod(x[2:]) * prod(weight)
    try:
        stride, padding, dilation = (json.loads(concrete[index]) for index in (3, 4, 5))
    except (IndexError, ValueError):
        return None  # padding="same" is not a number; the convolution that it calls has one
    outputs = 1
    for axis, (size, kernel) in enumerate(zip(x[2:], weight[2:], strict=True)):
        # A setting may be a single number for all axes.
        step, pad, spread = (setting[axis % len(setting)] for setting in (stride, padding, dilation))
        outputs *= (size + 2 * pad - spread * (kernel - 1) - 1) // step + 1
    return 2 * x[0] * outputs * prod(weight)


def _convolution_backward(event: Event) -> int:
    """Count one forward pass (groups included) for each requested gradient, of input and of weight."""
    gradient, x, weight = event.args["Input Dims"][:3]
    concrete = event.args["Concrete Inputs"]
    positions = x if concrete[7] == "True" else gradient
    wanted = concrete[10].strip("[]").split(", ")[:2]
    return wanted.count("True") * 2 * gradient[0] * prod(positions[2:]) * prod(weight)


def _attention(event: Event) -> int:
    """Count the FLOPs of the scores and their product with the values. A causal mask is not discounted."""
    query, key, value = event.args["Input Dims"][:3]
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward(event: Event) -> int:
    """Count the FLOPs of five products: the scores once more, then the gradients of values, scores, queries and
    keys."""
    _, query, key, value = event.args["Input Dims"][:4]
    return 2 * prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


_FORMULAS: dict[str, Callable[[Event], int | None]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::mv"), _matmul(0, 1)),
    **dict.fromkeys(("aten::addmm", "aten::_addmm_activation", "aten::baddbmm", "aten::addmv"), _matmul(1, 2)),
    **dict.fromkeys(("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::convolution"), _convolution),
    "aten::convolution_backward": _convolution_backward,
}
