"""A unit of fully sharded parameters, which are gathered, released and reduced together.

Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", section 3.2.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from threeloops.training.sharded.flat import FlatGradient, FlatLayout

__all__ = ["FlatParameter", "Unit"]


class FlatParameter:
    """Parameters of one dtype in one flat tensor. Each rank keeps its chunk, and holds all of it only between `gather`
    and `release`.

    `shard` is the tensor that the optimizer trains. If parameters have 16 bits, it is float32, the master copy, and its
    rounding is gathered. Released parameters have no elements.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        group: dist.ProcessGroup | None,
        replicas: dist.ProcessGroup | None,
    ) -> None:
        rank = dist.get_rank(group)
        first = next(iter(parameters.values()))
        self.parameters = parameters
        self.layout = FlatLayout(parameters, dist.get_world_size(group))
        self._group, self._full = group, self.layout.flatten(parameters)
        self._views = self.layout.views(self._full)
        chunk = self.layout.chunk(self._full, rank)
        self._chunk = chunk.float() if first.element_size() < 4 else chunk.clone()
        self.shard = torch.nn.Parameter(self.layout.unpadded(self._chunk, rank), first.requires_grad)
        self.gradient = FlatGradient(parameters, self.layout, self.shard, group, replicas)
        self._empty = first.new_empty(0)
        self._sent: torch.Tensor | None = None
        self._work: dist.Work | None = None
        self.gathered = True
        self.release()

    def gather(self) -> None:
        """Start the all-gather, if it is not started yet."""
        if not self.gathered:
            # Backward needs the very memory of which forward saved views: so it is resized, and not allocated anew.
            self._full.untyped_storage().resize_(self._full.numel() * self._full.element_size())
            self._sent = self._chunk.to(self._full.dtype)
            self._work = dist.all_gather_into_tensor(self._full, self._sent, group=self._group, async_op=True)
            self.gathered = True

    def wait(self) -> None:
        """Wait for the values of all parameters."""
        if self._work is not None:
            self._work.wait()
            self._work = self._sent = None
            for name, view in self._views.items():
                self.parameters[name].data = view

    def release(self) -> None:
        self.wait()
        if self.gathered:
            for parameter in self.parameters.values():
                parameter.data = self._empty
            self._full.untyped_storage().resize_(0)
            self.gathered = False


class Unit:
    """A module whose parameters are gathered, released and reduced together. `place` is its place in the forward pass.

    Parameters of different dtypes, and frozen ones, are flat tensors of their own.
    """

    def __init__(
        self,
        name: str,
        place: int,
        parameters: Mapping[str, torch.nn.Parameter],
        group: dist.ProcessGroup | None,
        replicas: dist.ProcessGroup | None,
    ) -> None:
        self.name = name
        self.place = place
        self.in_backward = False
        """Its parameters are gathered for backward, and may still be needed."""
        kinds: dict[str, dict[str, torch.nn.Parameter]] = {}
        for parameter_name, parameter in parameters.items():
            kind = str(parameter.dtype).removeprefix("torch.") + ("" if parameter.requires_grad else ".frozen")
            kinds.setdefault(f"{name}.{kind}" if name else kind, {})[parameter_name] = parameter
        self.flats = {kind: FlatParameter(same, group, replicas) for kind, same in kinds.items()}
        self.trained = [flat for flat in self.flats.values() if flat.shard.requires_grad]

    @property
    def gathered(self) -> bool:
        return any(flat.gathered for flat in self.flats.values())

    @property
    def missing(self) -> list[str]:
        """Parameters whose gradients are still to come."""
        return [name for flat in self.trained for name in flat.gradient.missing]

    def gather(self) -> None:
        for flat in self.flats.values():
            flat.gather()

    def wait(self) -> None:
        for flat in self.flats.values():
            flat.wait()

    def release(self) -> None:
        for flat in self.flats.values():
            flat.release()
        self.in_backward = False

    def release_trained(self) -> None:
        """Release the parameters when all gradients exist. Autograd computes a gradient when it uses the value for the
        last time. Frozen parameters have no gradient, so they may be needed until the whole unit's backward is over."""
        for flat in self.trained:
            flat.release()
        self.in_backward = self.gathered

    def reduce(self) -> None:
        for flat in self.trained:
            flat.gradient.reduce()

    def all_reduce(self) -> None:
        for flat in self.trained:
            flat.gradient.all_reduce()

    def finish(self) -> None:
        for flat in self.trained:
            flat.gradient.finish()
