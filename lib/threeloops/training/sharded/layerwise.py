"""A layer-wise distributed optimizer: ZeRO-1 for optimizers that need a whole parameter, such as Muon and Shampoo.

ZeRO cuts a flat tensor into equal chunks, wherever a matrix ends. Muon orthogonalizes a matrix, so a piece is not
enough. Here each parameter has one owner, and gradients and parameters travel by the same two collectives. The price is
balance: every chunk is as long as that of the rank that owns most (NVIDIA Emerging-Optimizers, "Layer-wise distributed
optimizer", read in November 2026; torchtitan's pull request 3502 assigns owners in the same way).
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from threeloops.training.data_parallel.replicas import broadcast_tensors, check_same_on_all_ranks, require_in_group
from threeloops.training.sharded.cost import bytes_sent

__all__ = ["LayerwiseOptimizer", "assign_owners", "layerwise_bytes"]


def assign_owners(costs: Sequence[float], ranks: int) -> list[int]:
    """Return the owner of each parameter: in falling order of cost, each goes to the rank with the least so far.

    No rank then has more than 4/3 − 1/(3 · ranks) of the best maximum (Graham 1969). Ties go to the lower index.
    """
    if ranks < 1 or min(costs, default=0) < 0:
        raise ValueError(f"costs = {list(costs)} on {ranks} ranks: expected costs ≥ 0, and at least one rank")
    loads = [0.0] * ranks
    owners = [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        owners[index] = min(range(ranks), key=loads.__getitem__)
        loads[owners[index]] += costs[index]
    return owners


def layerwise_bytes(
    sizes: Sequence[int], ranks: int, *, parameter_bytes: int = 2, gradient_bytes: int = 2
) -> tuple[int, int]:
    """Return the bytes that each rank sends in a step on rings, and those that ZeRO-1 would send.

    Args:
        sizes: elements of each parameter. All are reduced together.
    """
    owners = assign_owners(sizes, ranks)
    owned = [0] * ranks
    for size, owner in zip(sizes, owners, strict=True):
        owned[owner] += size
    padded, equal = (
        bytes_sent([whole], ranks, 1, parameter_bytes=parameter_bytes, gradient_bytes=gradient_bytes)[0]
        for whole in (ranks * max(owned), sum(sizes))
    )
    return padded, equal


class LayerwiseOptimizer:
    """Update each parameter on one rank, with any optimizer of torch, and give the result to all.

    >>> hidden = [(name, p) for name, p in model.blocks.named_parameters() if p.ndim == 2]
    >>> muon = LayerwiseOptimizer(hidden, torch.optim.Muon, lr=0.02)
    >>> loss.backward()
    >>> muon.step()
    >>> muon.zero_grad()

    Training equals that of one process with the same optimizer and the mean of all ranks' gradients, to the rounding of
    this mean. Gradients are whole on each rank until `step`, which averages them after backward and does not overlap
    with it. A 16-bit parameter has a float32 copy on its owner.

    Args:
        named_parameters: those of one dtype on one device, in the same order on all ranks. Rank 0's values are copied
            to all ranks.
        costs: one per parameter, to balance by; the number of elements without it. Elements decide what travels. For
            Muon's products in time, give `m · n · min(m, n)`.
        options: the optimizer's own.

    Raises:
        ValueError: there is no parameter, dtypes or devices are mixed, costs do not fit, or ranks disagree.
    """

    owners: dict[str, int]
    """The rank in the group that updates each parameter."""
    optimizer: torch.optim.Optimizer | None
    """The optimizer of this rank's parameters; None if it owns none, since there are fewer parameters than ranks."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None = None,
        *,
        costs: Sequence[float] | None = None,
        **options: Any,
    ) -> None:
        require_in_group(group, "LayerwiseOptimizer")
        parameters = {name: p for name, p in named_parameters if p.requires_grad}
        kinds = sorted({f"{p.dtype} on {p.device}" for p in parameters.values()})
        if len(kinds) != 1:
            raise ValueError(
                f"parameters of {', '.join(kinds) or 'no kind'}: expected one dtype on one device, and at least one "
                "parameter that requires a gradient. Use one LayerwiseOptimizer for each dtype"
            )
        sizes = [p.numel() for p in parameters.values()]
        if costs is not None and len(costs) != len(sizes):
            raise ValueError(f"{len(costs)} costs for {len(sizes)} trained parameters: expected one for each")
        check_same_on_all_ranks(parameters, group)
        broadcast_tensors([p.detach() for p in parameters.values()], group)
        self.group = group
        self._rank = dist.get_rank(group)
        ranks = dist.get_world_size(group)
        self.owners = dict(zip(parameters, assign_owners(sizes if costs is None else costs, ranks), strict=True))
        self._owned = [{n: p for n, p in parameters.items() if self.owners[n] == rank} for rank in range(ranks)]
        self._longest = max(sum(p.numel() for p in owned.values()) for owned in self._owned)
        mine = self._owned[self._rank]
        self._masters = {n: torch.nn.Parameter(p.detach().float()) if _narrow(p) else p for n, p in mine.items()}
        self.optimizer = optimizer_class(list(self._masters.values()), **options) if mine else None

    @torch.no_grad()
    def step(self) -> None:
        """Average the gradients on their owners, update there, and give all ranks the parameters. Every rank calls it.

        Raises RuntimeError if a parameter has no gradient on this rank.
        """
        flat = self._buffer()
        for rank, owned in enumerate(self._owned):
            if missing := [name for name, p in owned.items() if p.grad is None]:
                raise RuntimeError(
                    f"on rank {self._rank} there is no gradient for {', '.join(missing)}: expected a backward since "
                    "the last zero_grad() that reaches each parameter. Freeze the others before"
                )
            _write(flat[rank], [p.grad for p in owned.values() if p.grad is not None])
        mean = torch.empty_like(flat[0])
        dist.reduce_scatter_tensor(mean, flat.view(-1), group=self.group)
        mean /= len(self._owned)
        for master, gradient in zip(self._masters.values(), _parts(mean, self._owned[self._rank]), strict=True):
            master.grad = gradient.to(master.dtype)
        if self.optimizer is not None:
            self.optimizer.step()
        self._share()

    def zero_grad(self) -> None:
        """Free all gradients."""
        for owned in self._owned:
            for parameter in owned.values():
                parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what this rank owns, by the parameter's name: its master and the optimizer's state."""
        states = {} if self.optimizer is None else self.optimizer.state
        return {
            name: {"master": master.detach().clone(), "state": deepcopy(dict(states.get(master, {})))}
            for name, master in self._masters.items()
        }

    @torch.no_grad()
    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Load the merged results of `state_dict` of all ranks, of any number of ranks. Every rank must call it.

        Raises KeyError if a parameter that this rank owns is missing; nothing has changed then.
        """
        if missing := [name for name in self._masters if name not in states]:
            raise KeyError(
                f"no state for {', '.join(missing)}, which rank {self._rank} owns: merge the state_dict() of all ranks"
            )
        for name, master in self._masters.items():
            master.copy_(states[name]["master"])
            assert self.optimizer is not None
            self.optimizer.state[master] = deepcopy(states[name]["state"])
        self._share()

    def _buffer(self) -> Tensor:
        """Zeros, a row for each owner. Values beyond what an owner has are padding."""
        like = next(p for owned in self._owned for p in owned.values())
        return torch.zeros(len(self._owned), self._longest, dtype=like.dtype, device=like.device)

    def _share(self) -> None:
        """Give all ranks the parameters of every owner."""
        flat = self._buffer()
        _write(flat[self._rank], [master.to(flat.dtype) for master in self._masters.values()])
        dist.all_gather_into_tensor(flat.view(-1), flat[self._rank].clone(), group=self.group)
        for row, owned in zip(flat, self._owned, strict=True):
            for parameter, value in zip(owned.values(), _parts(row, owned), strict=True):
                parameter.copy_(value)


def _narrow(parameter: Tensor) -> bool:
    return parameter.element_size() < 4


def _write(row: Tensor, tensors: Sequence[Tensor]) -> None:
    if tensors:
        values = torch.cat([tensor.reshape(-1) for tensor in tensors])
        row[: len(values)] = values


def _parts(row: Tensor, parameters: Mapping[str, Tensor]) -> list[Tensor]:
    sizes = [p.numel() for p in parameters.values()]
    parts = row[: sum(sizes)].split(sizes) if sizes else ()
    return [part.view(p.shape) for part, p in zip(parts, parameters.values(), strict=True)]
