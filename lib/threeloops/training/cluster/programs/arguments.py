"""Check the tensors of a call of `torch.distributed`. Sizes, dtypes and layouts that gloo or NCCL refuse are refused.

In two cases the backends differ. The virtual cluster refuses a tensor that is not contiguous, as NCCL does. gloo reads
some of these tensors in the order of memory, which gives wrong numbers. And the virtual cluster accepts parts whose
sizes differ between ranks, as NCCL does.

Source: checks of ProcessGroupNCCL.cpp and ProcessGroupGloo.cpp in PyTorch 2.13, and the behaviour of both when tried.
"""

from collections.abc import Sequence

import torch

from threeloops.training.cluster.programs.tensors import DTYPES

__all__ = [
    "check_dense",
    "check_each_dense",
    "check_fit",
    "check_one_dtype",
    "check_parts",
    "check_reducible",
    "check_whole",
    "split_sizes",
]

_BITWISE = ("BAND", "BOR", "BXOR")
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def check_dense(call: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if a backend can send its memory without reordering it."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(
            f"{call}: {name} is on {tensor.device} with layout {str(tensor.layout).removeprefix('torch.')}: the "
            "virtual cluster sends dense tensors of the CPU"
        )
    if not (tensor.is_contiguous() or _is_channels_last(tensor)):
        raise ValueError(
            f"{call}: {name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}, so it is not contiguous: "
            "pass a contiguous tensor, such as .contiguous() returns, and copy the result back if there is one"
        )
    return tensor


def check_each_dense(call: str, name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise unless a backend can send the memory of each tensor of a list without reordering it."""
    for number, tensor in enumerate(tensors):
        check_dense(call, f"{name}[{number}]", tensor)


def _is_channels_last(tensor: torch.Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])


def check_reducible(call: str, tensor: torch.Tensor, reduction: str) -> None:
    """Raise unless this dtype can be sent and has the reduction."""
    if tensor.dtype == torch.int16 or _named(tensor.dtype) not in DTYPES:
        raise ValueError(
            f"{call}: no backend has collectives of {_named(tensor.dtype)}: convert to {_nearest(tensor.dtype)}"
        )
    if tensor.dtype in _FLOAT8 and call in ("all_reduce", "reduce", "reduce_scatter"):
        raise ValueError(f"{call}: {_named(tensor.dtype)} cannot be added: convert to bfloat16 or float32")
    if reduction == "AVG" and not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        raise ValueError(
            f"{call}: AVG of {_named(tensor.dtype)}, whose mean may not be an integer: use SUM, or a float dtype"
        )
    if reduction in _BITWISE and (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        raise ValueError(
            f"{call}: {reduction} of {_named(tensor.dtype)}, which has no bitwise reductions: use integers"
        )


def check_fit(call: str, name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """Raise unless both have the same shape and dtype."""
    if tensor.shape != other.shape or tensor.dtype != other.dtype:
        raise ValueError(
            f"{call}: {name} is {_described(tensor)}, and {other_name} is {_described(other)}: expected the same shape "
            "and dtype"
        )


def check_parts(call: str, name: str, parts: Sequence[torch.Tensor], ranks: int) -> None:
    """Raise unless the list has a tensor for each rank, all of one dtype."""
    if len(parts) != ranks:
        raise ValueError(f"{call} on {ranks} ranks: {name} has {len(parts)} tensors: expected one for each rank")
    check_one_dtype(call, name, parts)


def check_one_dtype(call: str, name: str, tensors: Sequence[torch.Tensor]) -> None:
    if len({tensor.dtype for tensor in tensors}) > 1:
        dtypes = ", ".join(_named(tensor.dtype) for tensor in tensors)
        raise ValueError(f"{call}: the tensors of {name} are {dtypes}: expected one dtype")


def check_whole(
    call: str, whole_name: str, whole: torch.Tensor, part_name: str, part: torch.Tensor, ranks: int
) -> None:
    """Raise unless `whole` is `ranks` tensors like `part`, joined along the first dimension or stacked."""
    joined = (ranks * part.shape[0], *part.shape[1:]) if part.dim() else (ranks,)
    if tuple(whole.shape) not in (joined, (ranks, *part.shape)) or whole.dtype != part.dtype:
        raise ValueError(
            f"{call} on {ranks} ranks: {part_name} is {_described(part)}, and {whole_name} is {_described(whole)}: "
            f"expected {ranks} times as many elements in {whole_name}, {_named(part.dtype)} of shape {joined} or "
            f"{(ranks, *part.shape)}; is the order of the two right?"
        )


def split_sizes(call: str, name: str, tensor: torch.Tensor, rows: list[int], ranks: int) -> list[int]:
    """Elements of each rank's part of a tensor that is split by rows, evenly if no rows are given."""
    total = len(tensor) if tensor.dim() else 0
    if not rows and total % ranks:
        raise ValueError(
            f"{call}: {name} has {total} rows, which {ranks} ranks cannot share evenly: give the split sizes"
        )
    rows = rows or [total // ranks] * ranks
    if len(rows) != ranks or sum(rows) != total:
        raise ValueError(
            f"{call}: the split sizes of {name} are {rows}: expected {ranks} numbers with the sum {total}, its rows"
        )
    per_row = tensor[0].numel() if total else 0
    return [count * per_row for count in rows]


def _described(tensor: torch.Tensor) -> str:
    return f"{_named(tensor.dtype)} of shape {tuple(tensor.shape)}"


def _nearest(dtype: torch.dtype) -> str:
    return "float32" if dtype.is_floating_point else "int32 or int64"


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
