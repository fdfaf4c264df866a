"""Convert a folder that torch.distributed.checkpoint wrote for a training run to the state that `TrainingState` loads.

DCP stores a nested dict under flat names, and programs nest it as they like. This module reads three common forms:
`optimizer.state_dict()`, whose parameters are numbers; `get_optimizer_state_dict`, whose parameters have names; and the
latter with `flatten_optimizer_state_dict=True`, as in torchtitan.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from threeloops.training.checkpoint.dcp.conversion import read_dcp
from threeloops.training.checkpoint.state import TrainingState
from threeloops.training.checkpoint.state.layouts import held_by_model

__all__ = ["training_from_dcp"]

_WRAPPERS = ("module.", "_orig_mod.")
"""The prefixes that DDP and `torch.compile` put before the names of a model."""
_States = dict[str, dict[str, Any]]
"""Values of the optimizer by parameter and key."""


def training_from_dcp(
    folder: Path | str, training: TrainingState, *, model: str = "model", optimizer: str = "optim"
) -> dict[str, Any]:
    """Return the whole tensors of the model and the optimizer, and the optimizer's groups, under our names.

    One process does this, for a `training` that is not cut. Save the result, and any ranks can load it. It contains
    neither random states nor other parts: add those that `training` has, such as `"scheduler": state_dict`.

    Args:
        model: the place of the model's `state_dict` in the saved state, with dots between the keys, or "" if its
            tensors are not below any key.
        optimizer: the place of the optimizer's.

    Raises:
        ValueError: there is nothing at these places, or its parameters are not those of `training`.
    """
    flat = read_dcp(folder)
    weights = {name: value for name, value in _below(flat, model).items() if isinstance(value, Tensor)}
    names = {id(held.tensor): list(held.place(held.tensor.detach())) for held in held_by_model(training.model)}
    expected = {name for all_names in names.values() for name in all_names}
    while weights and not expected <= weights.keys() and (wrapper := _wrapper(weights)):
        weights = {name.removeprefix(wrapper): value for name, value in weights.items()}
    if not model:  # what is beside the model has other names
        weights = {name: value for name, value in weights.items() if name in expected}
    if wrong := sorted(expected ^ weights.keys()):
        where = "in the folder only" if wrong[0] in weights else "in the model only"
        raise ValueError(
            f"{folder}: {wrong[0]!r} and {len(wrong) - 1} other tensors are {where}: give the model that was saved, "
            f"and with `model` its place among {_places(flat)}"
        )
    state: dict[str, Any] = {f"model.{name}": value for name, value in weights.items()}
    if training.optimizer is None:
        return state
    groups = [[names[id(p)][0] for p in group["params"]] for group in training.optimizer.param_groups]
    states, options = _optimizer(_below(flat, optimizer), groups)
    if unknown := sorted(states.keys() - {name for group in groups for name in group}):
        raise ValueError(f"{folder}: the optimizer has a state of {unknown[0]!r}, which it does not train here")
    for shared in names.values():  # a parameter that is shared has all of its names
        for key, value in states.get(shared[0], {}).items():
            if value is not None:
                tensor = value if isinstance(value, Tensor) else torch.tensor(float(value))
                state |= {f"optimizer.{name}.{key}": tensor for name in shared}
    return state | {"optimizer groups": options}


def _wrapper(names: Iterable[str]) -> str:
    """Return the prefix of a wrapper that all names have. Return "" if there is none."""
    return next((wrapper for wrapper in _WRAPPERS if all(name.startswith(wrapper) for name in names)), "")


def _below(flat: Mapping[str, Any], place: str) -> dict[str, Any]:
    prefix = f"{place}." if place else ""
    values = {name.removeprefix(prefix): value for name, value in flat.items() if name.startswith(prefix)}
    if not values:
        raise ValueError(f"there is nothing at {place!r}: expected one of {_places(flat)}")
    return values


def _places(flat: Mapping[str, Any]) -> str:
    return ", ".join(sorted({repr(name.partition(".")[0]) for name in flat})[:9])


def _optimizer(flat: Mapping[str, Any], groups: list[list[str]]) -> tuple[_States, list[dict[str, Any]]]:
    """States by parameter, and the options of each group; `groups` has the names of the parameters of each."""
    flattened = [name for group in groups for name in group if f"param_groups.{name}.lr" in flat]
    states: _States = {}
    options: list[dict[str, Any]] = [{} for _ in groups]
    order = [name for group in groups for name in group]
    of_each: _States = {}
    numbered = any(
        isinstance(parameter, int) for key, value in flat.items() if key.endswith(".params") for parameter in value
    )
    for path, value in flat.items():
        kind, _, rest = path.partition(".")
        owner, _, key = rest.rpartition(".")
        if kind == "state":
            if numbered and int(owner) < len(order):
                owner = order[int(owner)]
            states.setdefault(owner, {})[key] = value
        elif kind == "param_groups" and flattened:
            of_each.setdefault(owner, {})[key] = _number(value)
        elif kind == "param_groups" and (match := re.fullmatch(r"(\d+)\.(\w+)", rest)):
            if (number := int(match[1])) >= len(groups):
                raise ValueError(f"{number + 1} groups of parameters were saved: expected {len(groups)}")
            if match[2] != "params":
                options[number][match[2]] = _number(value)
            elif value != groups[number] and value != [order.index(name) for name in groups[number]]:
                raise ValueError(f"group {number} has {value}: expected {groups[number]}, those that are trained here")
    for number, group in enumerate(groups if flattened else ()):
        options[number] = _common_options(number, [(name, of_each.get(name, {})) for name in group])
    if lacking := [number for number, group in enumerate(options) if not group and groups[number]]:
        raise ValueError(f"there are no options of group {lacking[0]}: is the optimizer's place right?")
    return states, options


def _common_options(number: int, options: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the options of a group. Raises ValueError if those of its parameters differ."""
    first, expected = options[0] if options else ("", {})
    for name, own in options:
        if wrong := [key for key in expected | own if expected.get(key) != own.get(key)]:
            raise ValueError(
                f"group {number}: {first!r} was saved with {wrong[0]} = {expected.get(wrong[0])} and {name!r} with "
                f"{wrong[0]} = {own.get(wrong[0])}: expected the same within a group; give the groups that were saved"
            )
    return expected


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value
