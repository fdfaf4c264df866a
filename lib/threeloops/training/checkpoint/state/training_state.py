"""Turn the whole state of a training run into one mapping, and restore it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from threeloops.training.checkpoint.checkpointer import Loaded
from threeloops.training.checkpoint.format import DTYPES, bytes_of
from threeloops.training.checkpoint.manifest import Manifest
from threeloops.training.checkpoint.pieces import Sharded
from threeloops.training.checkpoint.state.layouts import Held, held_by_model, held_by_optimizer
from threeloops.training.checkpoint.state.parts import names_of_part, put_together, taken_apart
from threeloops.training.checkpoint.state.random_states import (
    RANDOM_BYTES,
    random_states,
    restore_random_states,
    seed_from,
)
from threeloops.training.sharded import ZeroOptimizer

__all__ = ["TrainingState"]


_TAKEN = ("random", "optimizer groups")


class TrainingState:
    """The state of a training run to be saved, and the objects that it is restored to.

    Args:
        model: a module. DDP or FSDP may wrap it, tensor parallelism may have cut its layers, or it may be a pipeline
            stage.
        optimizer: torch's, or a `ZeroOptimizer`.
        parts: other objects by name, such as a scheduler, a scaler or a loader, which have `state_dict` and
            `load_state_dict`, or a dataclass `state`. Tensors in their states are saved by every rank, since ranks may
            differ. A module, such as one that averages parameters, is saved like the model. torchdata's
            `StatefulDataLoader` draws from torch's generator when it is iterated over. Give it a `generator`, or a
            resumed run has other random numbers.
        group: the ranks that save together. By default all.
    """

    def __init__(
        self, model: nn.Module, optimizer: Any = None, *, group: dist.ProcessGroup | None = None, **parts: Any
    ) -> None:
        if taken := [n for n in parts if n in _TAKEN or n.startswith(("model.", "optimizer."))]:
            raise ValueError(f"a part is called {taken[0]!r}, as a part of every state is: give it another name")
        self.model = model
        self.optimizer = optimizer
        self.parts = parts
        alone = not dist.is_initialized()
        self.rank: int = 0 if alone else dist.get_rank(group)
        self.world: int = 1 if alone else dist.get_world_size(group)
        self._random = torch.zeros(1, RANDOM_BYTES, dtype=torch.uint8)
        self._scalars: list[tuple[Held, str, dict[str, Tensor]]] = []
        """Numbers that are loaded for the optimizer, one for each name that a tensor holds a part of."""

    def state(self) -> dict[str, Any]:
        """Return the state for `Checkpointer.save`. Its tensors are the live ones, not copies."""
        state = self._of_modules()
        for held in self._trained():
            for key, value in self._tensors_of(held).items():
                state |= {f"optimizer.{name}.{key}": part for name, part in _placed(held, key, value).items()}
        if self._optimizer is not None:
            state["optimizer groups"] = [
                {name: _number(value) for name, value in group.items() if name != "params"}
                for group in self._optimizer.param_groups
            ]
        for name, part in self._plain_parts.items():
            state[name], tensors = taken_apart(name, self.rank, _state_of(part))
            state |= tensors
        # At the very end: a part may draw a number when it is asked for its state.
        row = torch.frombuffer(bytearray(random_states()), dtype=torch.uint8)[None]
        state["random"] = Sharded((self.world, RANDOM_BYTES), torch.uint8, (((self.rank, 0), row),))
        return state

    @torch.no_grad()
    def template(self, manifest: Manifest) -> dict[str, Tensor | Sharded]:
        """Return this rank's tensors for `Checkpointer.load`. This creates the ones that the optimizer would create in
        its first step."""
        tensors = self._of_modules()
        for part in self._plain_parts:
            for name in names_of_part(part, manifest.tensors, self.rank, self.world, manifest.world):
                entry = manifest.tensors[name]
                tensors[name] = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        keys: dict[str, list[str]] = {}
        for name in manifest.tensors:
            if name.startswith("optimizer."):
                parameter, _, key = name.removeprefix("optimizer.").rpartition(".")
                keys.setdefault(parameter, []).append(key)
        self._scalars.clear()
        for held in self._trained():
            names = held.place(held.tensor.detach())
            expected = list(dict.fromkeys(key for name in names for key in keys.get(name, [])))
            state = self._states[held.tensor]
            for key in state.keys() - set(expected):
                del state[key]
            for key in expected:
                tensors |= self._slots(held, key, names, manifest)
        if "random" in manifest.tensors:
            row = self.rank if self.rank < manifest.world else 0
            tensors["random"] = Sharded((manifest.world, RANDOM_BYTES), torch.uint8, (((row, 0), self._random),))
        return tensors

    @torch.no_grad()
    def restore(self, loaded: Loaded) -> None:
        """Restore all that is not a tensor of the model or the optimizer, after `Checkpointer.load` with the template.

        The same number of ranks continues bit for bit. With more ranks, the new ones draw random numbers of their own,
        derived from those of the first.

        Raises:
            ValueError: something was saved that does not exist here, or the other way round.
        """
        plain = {name: value for name, value in loaded.state.items() if name not in loaded.manifest.tensors}
        expected = {*self._plain_parts, *(["optimizer groups"] if self.optimizer is not None else [])}
        if plain.keys() != expected or "random" in loaded.manifest.tensors.keys() - loaded.state:
            raise ValueError(
                f"step {loaded.step} was saved with {', '.join(sorted(plain)) or 'nothing'} beside tensors: expected "
                f"{', '.join(sorted(expected)) or 'nothing'}; give TrainingState the same parts"
            )
        for held, key, values in self._scalars:
            first, *others = values.values()
            if any(not torch.equal(first, other) for other in others):
                raise ValueError(
                    f"{key!r} of the optimizer differs between {', '.join(values)}, which are trained as one tensor "
                    "here: cut the model as it was, or into smaller units"
                )
            self._states[held.tensor][key] = first.to(held.tensor.device) if self._steps_on_device(held) else first
        if isinstance(self.optimizer, ZeroOptimizer) and not any(
            n.startswith("optimizer.") and n.endswith(".master") for n in loaded.manifest.tensors
        ):
            for bucket in self.optimizer.buckets:
                bucket.master.copy_(bucket.shard)
        if self.optimizer is not None:
            self._restore_groups(plain["optimizer groups"])
        for name, part in self._plain_parts.items():
            state = put_together(plain[name], loaded.state)
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(state)
            else:
                part.state = type(part.state)(**state)
        if "random" not in loaded.state:
            return  # another program's checkpoint: random numbers go on as they are
        data = bytes(bytes_of(self._random))
        if self.rank < loaded.manifest.world:
            restore_random_states(data)
        else:
            seed_from(data, self.rank)

    @property
    def _plain_parts(self) -> dict[str, Any]:
        return {name: part for name, part in self.parts.items() if not isinstance(part, nn.Module)}

    def _of_modules(self) -> dict[str, Any]:
        """Tensors of the model, and of the parts that are modules."""
        modules = {"model": self.model} | {n: part for n, part in self.parts.items() if isinstance(part, nn.Module)}
        tensors: dict[str, Any] = {}
        for prefix, module in modules.items():
            for held in held_by_model(module):
                tensors |= {f"{prefix}.{name}": part for name, part in held.place(held.tensor.detach()).items()}
        return tensors

    @property
    def _optimizer(self) -> torch.optim.Optimizer | None:
        """torch's own."""
        return self.optimizer.optimizer if isinstance(self.optimizer, ZeroOptimizer) else self.optimizer

    @property
    def _states(self) -> Any:
        assert self._optimizer is not None
        return self._optimizer.state

    def _trained(self) -> list[Held]:
        if self._optimizer is None:
            return []
        trained = {id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]}
        owned = [held for held in held_by_optimizer(self.model, self.optimizer) if id(held.tensor) in trained]
        if len(owned) != len(trained):
            raise ValueError(
                f"the optimizer trains {len(trained)} tensors, and {len(owned)} of them are the model's: give "
                "TrainingState the model that it trains"
            )
        return owned

    def _tensors_of(self, held: Held) -> dict[str, Tensor]:
        """Return the optimizer's state of one tensor."""
        state = {key: value for key, value in self._states.get(held.tensor, {}).items() if value is not None}
        for key, value in state.items():
            if not isinstance(value, Tensor):
                raise TypeError(f"the optimizer's {key!r} is of type {type(value).__name__}: expected a tensor")
        return state | ({"master": held.tensor.detach()} if self._is_master(held) else {})

    def _slots(
        self, held: Held, key: str, names: Mapping[str, Tensor | Sharded], manifest: Manifest
    ) -> dict[str, Tensor | Sharded]:
        """Return where to load the optimizer's state of one tensor. One number may come from several names."""
        state = self._states[held.tensor]
        entries = {f"optimizer.{name}.{key}": manifest.tensors.get(f"optimizer.{name}.{key}") for name in names}
        if lacking := [name for name, entry in entries.items() if entry is None]:
            raise ValueError(f"it does not have {lacking[0]!r}, and parameters that are trained as one tensor do")
        kinds = {DTYPES[entry.dtype] for entry in entries.values() if entry}
        shapes = [tuple(part.shape) for part in names.values()]
        if key == "master" and self._is_master(held):
            state = {key: held.tensor.detach()}
        elif [e.shape for e in entries.values() if e] != shapes:
            values = {name: torch.empty(e.shape, dtype=DTYPES[e.dtype]) for name, e in entries.items() if e}
            self._scalars.append((held, key, values))
            return dict(values)
        elif key not in state or state[key].shape != held.tensor.shape or state[key].dtype not in kinds:
            state[key] = torch.empty_like(held.tensor, dtype=min(kinds, key=str))
        return {f"optimizer.{name}.{key}": part for name, part in held.place(state[key]).items()}

    def _is_master(self, held: Held) -> bool:
        if not isinstance(self.optimizer, ZeroOptimizer):
            return False
        return any(held.tensor is bucket.master is not bucket.shard for bucket in self.optimizer.buckets)

    def _steps_on_device(self, held: Held) -> bool:
        """Return whether torch's optimizer counts its steps on the GPU."""
        assert self._optimizer is not None
        groups = [g for g in self._optimizer.param_groups if any(p is held.tensor for p in g["params"])]
        return any(group.get("capturable") or group.get("fused") for group in groups)

    def _restore_groups(self, saved: list[dict[str, Any]]) -> None:
        assert self._optimizer is not None
        groups = self._optimizer.param_groups
        if len(saved) != len(groups):
            raise ValueError(
                f"{len(saved)} groups of parameters were saved: expected {len(groups)}, those of the optimizer"
            )
        for group, values in zip(groups, saved, strict=True):
            for name, value in values.items():
                if isinstance(group.get(name), Tensor):
                    group[name].fill_(value)
                else:
                    group[name] = value


def _placed(held: Held, key: str, value: Tensor) -> Mapping[str, Tensor | Sharded]:
    """Return the layout of an optimizer's state. State per element has the layout of its tensor, and a single number
    counts for all names."""
    if value.shape == held.tensor.shape:
        return held.place(value)
    places = held.place(held.tensor.detach())
    if value.dim() and (cut := [name for name, part in places.items() if isinstance(part, Sharded)]):
        raise ValueError(
            f"the optimizer's {key!r} of {cut[0]!r} has shape {tuple(value.shape)}: expected one number, or "
            f"{tuple(held.tensor.shape)}, that of the tensor here, since each rank has a part of it; take an optimizer "
            "that keeps its state per element, such as AdamW, or do not cut the model"
        )
    return dict.fromkeys(places, value)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _state_of(part: Any) -> Any:
    return part.state_dict() if hasattr(part, "state_dict") else asdict(part.state)
