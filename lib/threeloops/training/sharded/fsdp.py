"""ZeRO-3 as fully sharded data parallelism: parameters, gradients and optimizer states in one part per rank.

Sources: Rajbhandari et al. 2020, section 5.3, and Zhao et al. 2023, "PyTorch FSDP", section 3. Names follow torch's
`fully_shard` wherever it has the same thing.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from threeloops.training.data_parallel import clip_grad_norm
from threeloops.training.data_parallel.replicas import (
    SharedBuffers,
    broadcast_tensors,
    check_same_on_all_ranks,
    require_in_group,
)
from threeloops.training.mesh import Mesh
from threeloops.training.sharded.flat import load_shards, shards_state
from threeloops.training.sharded.unit import FlatParameter, Unit

__all__ = ["FSDP"]


class FSDP(torch.nn.Module):
    """A module of which each rank keeps 1/ranks. Its units are gathered when they are needed, and released again.

    Use it in place of the module: `fsdp = FSDP(model, model.blocks)`, then an optimizer of `fsdp.parameters()`, which
    are this rank's shards. The optimizer must treat each element by itself. Training equals that of DDP, bit for bit
    under the conditions that `flat` states.

    - In forward, a unit's parameters are gathered before it runs and released after it. In backward they are gathered
      again, and released when its gradients are complete. These gradients are then reduce-scattered asynchronously, and
      add up in the shards' `grad` until `zero_grad()`. The all-gather of the next unit begins while this unit
      computes.
    - Parameters outside all units form the root, which is gathered once, for the whole of forward and backward.
    - Parameters of one unit may be shared within it. Frozen parameters are gathered, and never reduced. With 16-bit
      parameters the shards are float32 masters.
    - Parameters and buffers are copied from rank 0 at the start, and buffers later as with DDP.
    - Every backward must reach every trained parameter. Do not change the shards between a forward and its backward.
    - Every rank must hold the whole module until it is wrapped.
    - Collectives take tensors from the device of the module. On GPUs use NCCL: call `torch.cuda.set_device`, and move
      the module to that device before wrapping it. Each collective is waited for before its result is read or its
      memory is freed. On NCCL that orders the current CUDA stream, not the host. Not measured on a GPU: tested on
      gloo, on the virtual cluster, and with tensors of the meta device.

    Args:
        units: modules in the order in which they run, such as a model's blocks, none inside another. Another order is
            slower but equally correct.
        group: the ranks to shard over. By default all.
        replicas: for hybrid sharding, the ranks that hold the same shard as this one. Gradients are reduce-scattered in
            `group`, which should be inside a node, and then all-reduced over these.
        mesh: instead of both groups, a mesh of two axes, replicas and shards, such as `Mesh(replicate=2, shard=4)`.
        units_in_flight: the most units besides the root that are gathered, or hold unreduced gradients, at a time. 1
            does not prefetch. Units that stay after forward are not counted.
        reshard_after_forward: False keeps parameters from forward to backward: ZeRO-2's memory, and its communication.

    Raises:
        ValueError: ranks disagree about the module; the group does not carry tensors of its device; a unit is not in it
            or inside another; or two units share a parameter.
    """

    units: list[Unit]

    def __init__(
        self,
        module: torch.nn.Module,
        units: Iterable[torch.nn.Module],
        group: dist.ProcessGroup | None = None,
        replicas: dist.ProcessGroup | None = None,
        *,
        mesh: Mesh | None = None,
        units_in_flight: int = 2,
        reshard_after_forward: bool = True,
    ) -> None:
        super().__init__()
        require_in_group(group, "FSDP")
        if units_in_flight < 1:
            raise ValueError(f"units_in_flight = {units_in_flight}: expected 1 or more")
        if mesh is not None:
            if len(mesh.axes) != 2 or group is not None or replicas is not None:
                raise ValueError(
                    f"{mesh}: expected a mesh of two axes, replicas and shards, and no groups beside it; of a larger "
                    "mesh pass the groups of two axes, from mesh.connect()"
                )
            replicas, group = mesh.connect().values()
        units = list(units)
        owned = _parameters_by_unit(module, units)
        groups = [group] if replicas is None else [replicas, group]
        for process_group in groups:
            check_same_on_all_ranks(dict(module.named_parameters()) | dict(module.named_buffers()), process_group)
            broadcast_tensors([*module.parameters(), *module.buffers()], process_group)
        self.module = module
        self.group = group
        self._limit = units_in_flight
        self._reshard = reshard_after_forward
        made = [Unit(name, place, owned[name], group, replicas) for place, name in enumerate(owned)]
        self.units = made[:-1]
        self._root = made[-1]
        self._reducing: deque[Unit] = deque()
        self._in_backward = False
        self._shared_buffers = SharedBuffers(module, *groups)
        for child, unit in zip(units, self.units, strict=True):
            child.register_forward_pre_hook(partial(self._before_forward, unit))
            child.register_forward_hook(partial(self._after_forward, unit))
        for unit in made:
            for flat in unit.trained:
                for name, parameter in flat.parameters.items():
                    parameter.register_post_accumulate_grad_hook(partial(self._gradient_ready, unit, flat, name))

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        self._release_all()  # what a forward without a backward has left is of an earlier step
        self._shared_buffers.before_forward()
        self._use(self._root, self.units)
        output = self.module(*arguments, **keywords)
        self._shared_buffers.after_forward()
        if torch.is_grad_enabled():
            self._watch(self._root, output)
        else:
            self._release_all()
        return output

    def _before_forward(self, unit: Unit, *_: Any) -> None:
        if not unit.in_backward:  # else a checkpoint computes it again
            self._use(unit, self.units[unit.place + 1 :])

    def _after_forward(self, unit: Unit, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            self._watch(unit, output)
        if not unit.in_backward and (self._reshard or not torch.is_grad_enabled()):
            unit.release()

    def _use(self, unit: Unit, following: list[Unit]) -> None:
        """Gather a unit, begin to gather those that are needed next as far as the limit goes, and wait for the first.
        So the link has its next work while this unit computes."""
        unit.gather()
        for ahead in following[: self._limit - 1]:
            if not self._reshard or sum(other.gathered for other in self.units) < self._limit:
                ahead.gather()
        unit.wait()

    def _watch(self, unit: Unit, output: Any) -> None:
        """Have `_before_backward` called when a gradient of the output is there."""
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(partial(self._before_backward, unit))

    def _before_backward(self, unit: Unit, _: Tensor) -> None:
        self._begin_backward()
        for later in self.units[unit.place + 1 :]:
            if later.in_backward:
                later.release()  # autograd goes through the forward pass in reverse: its backward is over
        unit.in_backward = True
        self._use(unit, self.units[: unit.place][::-1])

    def _begin_backward(self) -> None:
        if not self._in_backward:
            self._in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            for unit in (*self.units, self._root):
                for flat in unit.trained:
                    flat.gradient.expect()

    def _gradient_ready(self, unit: Unit, flat: FlatParameter, name: str, _: Tensor) -> None:
        """Hook of each parameter, called once in a backward, after its last use was accumulated."""
        self._begin_backward()
        if unit is not self._root and not flat.gradient.collecting:
            while len(self._reducing) >= self._limit:
                self._reducing.popleft().finish()
        flat.gradient.put(name)
        if not unit.missing:
            if unit is not self._root:
                unit.release_trained()
            for before in self._reducing:
                before.all_reduce()
            unit.reduce()
            self._reducing.append(unit)

    def _finish(self) -> None:
        """Finish the step's communication at the end of backward."""
        self._in_backward = False
        while self._reducing:
            self._reducing.popleft().finish()
        self._release_all()
        if missing := sorted(name for unit in (*self.units, self._root) for name in unit.missing):
            raise RuntimeError(
                f"on rank {dist.get_rank(self.group)} there is no gradient for {', '.join(missing)}: expected one for "
                "each parameter, else ranks would wait for one another. Freeze them before wrapping"
            )

    def _release_all(self) -> None:
        for unit in (*self.units, self._root):
            unit.release()

    @property
    def flats(self) -> dict[str, FlatParameter]:
        """The flat tensors of all units, by the name of their shard: the unit's name and the dtype."""
        return {name: flat for unit in (*self.units, self._root) for name, flat in unit.flats.items()}

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield this rank's shards, which can be trained, instead of the parameters of the module."""
        for name, flat in self.flats.items():
            yield name, flat.shard

    def clip_grad_norm(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the averaged gradient so that its norm, over the shards of all ranks, is at most `max_norm`; returns
        the norm before. Every rank must call it."""
        return clip_grad_norm(self.parameters(), max_norm, self.group, norm_type, sharded=True)

    @contextmanager
    def full_parameters(self) -> Iterator[None]:
        """A context in which the module has all of its parameters, to be read. Changes to them are lost. Every rank
        must enter it."""
        for unit in (*self.units, self._root):
            unit.gather()
            unit.wait()
        try:
            yield
        finally:
            self._release_all()

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """A copy of this rank's shard of each flat tensor. Also save the optimizer's states, which have the same
        length."""
        flats = self.flats.values()
        return shards_state([flat.layout for flat in flats], [flat.shard for flat in flats], self.group)

    def load_state_dict(self, state: Any, *_: Any, **__: Any) -> None:
        """Load the result of `state_dict` from the same rank of the same number of ranks."""
        flats = self.flats.values()
        load_shards(state, [flat.layout for flat in flats], [flat.shard for flat in flats], self.group)

    def _apply(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("the parameters of this module are sharded: move or convert it before wrapping it in FSDP")


def _parameters_by_unit(
    module: torch.nn.Module, units: list[torch.nn.Module]
) -> dict[str, dict[str, torch.nn.Parameter]]:
    """Return the parameters of each unit by name, and finally those of the root, "". Each parameter is listed once."""
    names = {child: name for name, child in module.named_modules()}
    for unit in units:
        if not names.get(unit):
            raise ValueError(f"a unit of type {type(unit).__name__} is not a part of the module, or all of it")
    owned: dict[str, dict[str, torch.nn.Parameter]] = {name: {} for name in [*map(names.__getitem__, units), ""]}
    places: dict[torch.nn.Parameter, tuple[str, str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owners = [unit for unit in owned if unit and name.startswith(f"{unit}.")]
        if len(owners) > 1:
            raise ValueError(f"unit {owners[1]!r} and unit {owners[0]!r}: one is inside the other; leave one out")
        owner = owners[0] if owners else ""
        first, before = places.setdefault(parameter, (name, owner))
        if before != owner:
            raise ValueError(
                f"{name!r} is {first!r}, and in another unit: a shared parameter is gathered and reduced with one "
                "unit. Make both parts of one unit, or leave both to the root"
            )
        if first == name:
            owned[owner][name] = parameter
    return owned
