"""Layouts of tensors on ranks, described without reference to the number of ranks.

A tensor has one name and one global shape on all ranks. A rank holds boxes of it, each with a start and a shape. A
whole tensor is one box. A slice along a dimension (tensor parallelism) is one box too. A range of the flattened tensor
(ZeRO, FSDP) is at most 2·d − 1 boxes in d dimensions, each contiguous in that range. So loading only has to overlap
boxes, even if the ranks that load differ from those that saved.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from threeloops.training.checkpoint.format import to_plain

__all__ = [
    "Box", "Sharded", "assign_writers", "check_cover", "flat_range", "held", "overlap", "overlapping", "require_dense",
    "sharded_along", "split",
]  # fmt: skip


class Box(NamedTuple):
    start: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Sharded:
    """This rank's part of a tensor of global `shape`: the start of each of its boxes, and their values.

    A rank may have no boxes. Ranks may have the same boxes: these are replicas, and any one of them is written.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: tuple[tuple[tuple[int, ...], Tensor], ...]
    of_first_rank: bool = False
    """Whether replicas may differ, so that the copy of the first rank that has one counts."""

    def __post_init__(self) -> None:
        for start, values in self.parts:
            ends = [first + length for first, length in zip(start, values.shape, strict=False)]
            fits = len(start) == values.dim() == len(self.shape)
            if (
                not fits
                or any(first < 0 for first in start)
                or any(e > s for e, s in zip(ends, self.shape, strict=True))
            ):
                raise ValueError(f"a part of shape {tuple(values.shape)} at {start} is not inside of {self.shape}")
            if values.dtype != self.dtype:
                raise ValueError(f"a part at {start} has {values.dtype}: expected {self.dtype}, that of the tensor")


def sharded_along(dim: int, values: Tensor, rank: int, ranks: int) -> Sharded:
    """`values` is part `rank` of `ranks` equal parts along `dim`: `Shard(dim)` of `training/mesh.py`."""
    dim %= values.dim()
    shape = tuple(length * ranks if d == dim else length for d, length in enumerate(values.shape))
    start = tuple(values.shape[dim] * rank if d == dim else 0 for d in range(values.dim()))
    return Sharded(shape, values.dtype, ((start, values),))


def flat_range(shape: tuple[int, ...], begin: int, values: Tensor) -> Sharded:
    """`values`, of one dimension, are the elements of the flattened tensor from `begin` on."""
    parts = []
    at = 0
    for box in _range_boxes(shape, begin, begin + len(values)):
        parts.append((box.start, values[at : at + prod(box.shape)].view(box.shape)))
        at += prod(box.shape)
    return Sharded(shape, values.dtype, tuple(parts))


def _range_boxes(shape: tuple[int, ...], begin: int, end: int) -> list[Box]:
    """Return the elements `begin` … `end − 1` of the flattened tensor as boxes, in order: the rest of a row, whole
    rows, and the beginning of another row, which is divided in the same way."""
    if begin >= end:
        return []
    if not shape:
        return [Box((), ())]
    row = prod(shape[1:])
    first = -(-begin // row)
    last = end // row  # whole rows
    if first > last:  # inside of one row
        return _in_row(shape, last, begin - last * row, end - last * row)
    boxes = _in_row(shape, first - 1, begin - (first - 1) * row, row) if begin < first * row else []
    if first < last:
        boxes.append(Box((first, *[0] * (len(shape) - 1)), (last - first, *shape[1:])))
    return boxes + (_in_row(shape, last, 0, end - last * row) if end > last * row else [])


def _in_row(shape: tuple[int, ...], row: int, begin: int, end: int) -> list[Box]:
    return [Box((row, *start), (1, *size)) for start, size in _range_boxes(shape[1:], begin, end)]


def overlap(one: Box, other: Box) -> Box | None:
    """Return the elements that are in both boxes, or None if there are none."""
    start = tuple(map(max, one.start, other.start))
    end = [min(a + n, b + m) for a, n, b, m in zip(*one, *other, strict=True)]
    shape = tuple(e - s for s, e in zip(start, end, strict=True))
    return Box(start, shape) if all(length > 0 for length in shape) else None


def overlapping(boxes: Iterable[Box]) -> tuple[Box, Box] | None:
    """Return two of these boxes that have elements in common, or None if there are none."""
    ordered = sorted(boxes)
    for number, one in enumerate(ordered):
        for other in ordered[number + 1 :]:
            if other.start[:1] >= tuple(map(int.__add__, one.start[:1], one.shape[:1])):
                break  # and so do all that follow: they begin below it
            if overlap(one, other):
                return one, other
    return None


def split(state: Mapping[str, Any]) -> tuple[dict[str, Tensor | Sharded], dict[str, Any]]:
    """Return the tensors of a state, and its other values in the form that `to_plain` gives them.

    Raises TypeError or ValueError, naming the entry, for something that cannot be saved.
    """
    tensors: dict[str, Tensor | Sharded] = {}
    values: dict[str, Any] = {}
    for name, value in state.items():
        if type(name) is not str or not name.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in name):
            raise TypeError(f"name {name!r}: expected text, without lone surrogates")
        if isinstance(value, Tensor | Sharded):
            require_dense(name, value)
            tensors[name] = value
            continue
        try:
            values[name] = to_plain(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name!r}: {error}") from None
    return tensors, values


def require_dense(name: str, value: Tensor | Sharded) -> None:
    """Raise TypeError unless the tensor's memory consists of its values, at fixed strides."""
    for tensor in (value,) if isinstance(value, Tensor) else (values for _, values in value.parts):
        kind = next((kind for kind, (is_kind, _) in _NOT_DENSE.items() if is_kind(tensor)), None)
        if kind is not None:
            raise TypeError(f"{name!r} is a {kind} tensor: {_NOT_DENSE[kind][1]}")


_NOT_DENSE: dict[str, tuple[Callable[[Tensor], bool], str]] = {
    "nested": (
        lambda tensor: tensor.is_nested,
        "save its values() and offsets(), or each of its parts",
    ),
    "sparse": (lambda tensor: tensor.layout is not torch.strided, "save its indices and values, or its to_dense()"),
    "meta": (lambda tensor: tensor.is_meta, "it has no values; make the model on a device first"),
    "conjugated": (lambda tensor: tensor.is_conj(), "its memory has other values; save its resolve_conj()"),
    "negated": (lambda tensor: tensor.is_neg(), "its memory has other values; save its resolve_neg()"),
    "wrapped": (
        lambda tensor: type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__,
        "it holds others, as a DTensor does; save its to_local() in a Sharded, or the tensors that it holds",
    ),
}


def held(state: Mapping[str, object]) -> dict[tuple[str, Box], Tensor]:
    """Return the values of each nonempty box of this rank, by name and box. A plain tensor is whole. The values are
    without gradients, because the threads that fill them have their own setting for gradients."""
    boxes: dict[tuple[str, Box], Tensor] = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            parts: Iterable[tuple[tuple[int, ...], Tensor]] = (((0,) * value.dim(), value),)
        else:
            assert isinstance(value, Sharded)
            parts = value.parts
        for start, values in parts:
            if values.numel():
                box = Box(tuple(start), tuple(values.shape))
                boxes[name, box] = values.detach() if values.requires_grad else values
    return boxes


def assign_writers(
    holdings: Sequence[Mapping[tuple[str, Box], int]], of_first_rank: Container[str] = ()
) -> list[set[tuple[str, Box]]]:
    """Decide which boxes each rank writes, given the bytes of the boxes that each rank holds. Every box is written
    once.

    A box that only one rank has is written by that rank. The others, largest first, each go to the rank with the least
    to write among those that have it. A box of a tensor in `of_first_rank` goes to the first rank that has it.
    """
    if len(holdings) == 1:
        return [set(holdings[0])]
    holders: dict[tuple[str, Box], list[int]] = {}
    sizes: dict[tuple[str, Box], int] = {}
    for rank, holding in enumerate(holdings):
        for key, size in holding.items():
            holders.setdefault(key, []).append(rank)
            sizes[key] = size
    load, writes = [0] * len(holdings), [set[tuple[str, Box]]() for _ in holdings]
    for key, ranks in holders.items():
        if key[0] in of_first_rank:
            holders[key] = ranks[:1]
    for key in sorted(holders, key=lambda key: (len(holders[key]) > 1, -sizes[key], key)):
        rank = min(holders[key], key=lambda rank: load[rank])
        load[rank] += sizes[key]
        writes[rank].add(key)
    return writes


def check_cover(
    described: Mapping[str, tuple[str, tuple[int, ...]]], writers: Iterable[Iterable[tuple[str, Box]]]
) -> None:
    """Raise ValueError if the written boxes do not make up the tensors, with these types and shapes."""
    elements = dict.fromkeys(described, 0)
    firsts: dict[str, Box] = {}
    several: dict[str, list[Box]] = {}
    for written in writers:
        for name, box in written:
            elements[name] += prod(box.shape)
            if name in firsts:
                several.setdefault(name, [firsts[name]]).append(box)
            firsts.setdefault(name, box)
    for name, (_, shape) in described.items():
        if name in several and (pair := overlapping(several[name])):
            one, other = (f"that of shape {box.shape} at {box.start}" for box in pair)
            raise ValueError(
                f"parts of {name!r} overlap: {one}, and {other}: they must be apart from one another or equal"
            )
        if elements[name] != prod(shape):
            raise ValueError(
                f"the parts of {name!r} on all ranks have {elements[name]} elements together, and shape {shape} has "
                f"{prod(shape)}: they must make it up"
            )
