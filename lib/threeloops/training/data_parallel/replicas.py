"""Start ranks with the same module: the checks, and what rank 0 sends to the others."""

from collections.abc import Iterable, Mapping
from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import Tensor

from threeloops.training.data_parallel.buckets import assign_buckets

__all__ = [
    "SharedBuffers", "broadcast_tensors", "carried_devices", "check_same_on_all_ranks", "replicas_in_buckets",
    "require_in_group",
]  # fmt: skip


def require_in_group(group: dist.ProcessGroup | None, what: str) -> None:
    """Raise RuntimeError if there is no process group, and ValueError if this rank is not in it."""
    if not dist.is_initialized():
        raise RuntimeError(f"{what} needs a process group: call torch.distributed.init_process_group() first")
    if dist.get_rank(group) < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in this group: use {what} on its ranks only")


def carried_devices(group: dist.ProcessGroup | None) -> list[str]:
    """List the types of devices whose tensors a group's backends carry: "cuda" for NCCL, "cpu" for the virtual
    cluster."""
    return [part.partition(":")[0] for part in dist.get_backend_config(group).split(",")]


def check_same_on_all_ranks(tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """Raise ValueError if ranks disagree about names, shapes, dtypes or frozen parameters, or if the group does not
    carry a tensor."""
    carried = carried_devices(group)
    for name, tensor in tensors.items():
        if tensor.device.type not in carried:
            raise ValueError(
                f"{name} is on {tensor.device}, and this group carries tensors on {', '.join(carried)}: move the "
                "module there before wrapping it, or use another backend"
            )
    mine = [
        f"{name}: shape {tuple(t.shape)}, {str(t.dtype).removeprefix('torch.')}{', trained' if t.requires_grad else ''}"
        for name, t in tensors.items()
    ]
    everyone: list[list[str]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(everyone, mine, group=group)
    for rank, theirs in enumerate(everyone):
        for expected, actual in zip_longest(everyone[0], theirs, fillvalue="nothing"):
            if expected != actual:
                raise ValueError(
                    f"the module of rank {rank} is not that of rank 0: it has {actual}, where rank 0 has {expected}. "
                    "Build the same module on every rank before wrapping it"
                )


def replicas_in_buckets(
    module: torch.nn.Module, group: dist.ProcessGroup | None, purpose: str, bucket_cap_mb: float, first_bucket_mb: float
) -> list[dict[str, torch.nn.Parameter]]:
    """Make all ranks' modules like rank 0's, and return the trained parameters by name, bucket by bucket.

    Raises ValueError if ranks disagree about the module, or if it has nothing to train for this purpose.
    """
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trained:
        raise ValueError(f"the module has no parameter that requires a gradient: there is nothing to {purpose}")
    check_same_on_all_ranks(dict(module.named_parameters()) | dict(module.named_buffers()), group)
    broadcast_tensors([*module.parameters(), *module.buffers()], group)
    sizes = [p.numel() * p.element_size() for _, p in trained]
    assigned = assign_buckets(sizes, bucket_cap_mb, first_bucket_mb, [(p.dtype, p.device) for _, p in trained])
    return [dict(trained[index] for index in bucket) for bucket in assigned]


@torch.no_grad()
def broadcast_tensors(tensors: Iterable[Tensor], group: dist.ProcessGroup | None) -> None:
    """Give all ranks the values of the group's first, in one message per dtype and device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for same in kinds.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        dist.broadcast(flat, group=group, group_src=0)
        for tensor, values in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
            tensor.copy_(values.view(tensor.shape))


class SharedBuffers:
    """The buffers of a module, copied from the first rank before each forward that follows one with gradients.

    Args:
        groups: one group, or several that follow one another. The first rank of each group passes its buffers on.
    """

    def __init__(self, module: torch.nn.Module, *groups: dist.ProcessGroup | None) -> None:
        self._module = module
        self._groups = groups
        self._changed = True

    def before_forward(self) -> None:
        if self._changed:
            buffers = tuple(self._module.buffers())
            with torch.autograd._unsafe_preserve_version_counter(buffers):  # an earlier forward may have saved them
                for group in self._groups:
                    broadcast_tensors(buffers, group)
            self._changed = False

    def after_forward(self) -> None:
        self._changed = self._changed or torch.is_grad_enabled()
