"""Take the tensors out of a part's `state_dict` to save them by name, and put them back in.

A rank's own state of a part, such as the random generator of its data loader, differs from that of other ranks. So the
tensors of each rank have their own names: "loader[3].generator" belongs to rank 3.
"""

import copy
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

__all__ = ["names_of_part", "put_together", "taken_apart"]

_MARK = "!tensor"
"""The key of a dict that stands in the place of a tensor, and has its name."""


def taken_apart(part: str, rank: int, state: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return the state with a mark in place of each tensor, and the tensors by name. The state itself is unchanged."""
    tensors: dict[str, Tensor] = {}

    def marked(value: Any, place: str) -> Any:
        if isinstance(value, Tensor):
            while place in tensors:  # "a.b", and "b" of "a"
                place += "'"
            tensors[place] = value.detach()
            return {_MARK: place}
        if type(value) in (list, tuple):
            return type(value)(marked(inner, f"{place}[{number}]") for number, inner in enumerate(value))
        if type(value) in (dict, OrderedDict):
            if value.keys() == {_MARK}:
                raise ValueError(f"{place} is a dict whose one key is {_MARK!r}, which stands for a tensor here")
            copied = copy.copy(value)  # with its attributes
            for key, inner in value.items():
                copied[key] = marked(inner, f"{place}.{key}" if isinstance(key, str) else f"{place}[{key!r}]")
            return copied
        return value

    return marked(state, f"{part}[{rank}]"), tensors


def put_together(state: Any, tensors: Mapping[str, Any]) -> Any:
    """Return the state that `taken_apart` was given. The marked state is not changed."""
    if type(state) in (list, tuple):
        return type(state)(put_together(inner, tensors) for inner in state)
    if type(state) in (dict, OrderedDict):
        if state.keys() == {_MARK}:
            return tensors[state[_MARK]]
        copied = copy.copy(state)  # with its attributes
        for key, inner in state.items():
            copied[key] = put_together(inner, tensors)
        return copied
    return state


def names_of_part(part: str, names: Iterable[str], rank: int, world: int, saved_by: int) -> list[str]:
    """Return the tensors of a part that this rank of `world` loads, if `saved_by` ranks saved: its own, or those of the
    first rank if this rank is new. The tensors of ranks that no longer exist are shared out, so that each tensor is
    asked for."""
    ranks = {rank if rank < saved_by else 0, *range(world + rank, saved_by, world)}
    return [name for name in names if name.startswith(tuple(f"{part}[{owner}]" for owner in ranks))]
