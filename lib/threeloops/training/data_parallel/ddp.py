"""Data-parallel training as torch's DistributedDataParallel does it, on plain `torch.distributed`.

Every rank has the whole model and its own part of the batch. Gradients are averaged in buckets while backward is still
running: a hook puts each finished gradient into its bucket, a full bucket starts its all-reduce, and backward ends when
all of them have ended. After Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.cpp.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from threeloops.training.data_parallel.buckets import BUCKET_CAP_MB, FIRST_BUCKET_MB
from threeloops.training.data_parallel.replicas import SharedBuffers, replicas_in_buckets, require_in_group

__all__ = ["DDP", "Bucket"]


class Bucket:
    """Gradients that are averaged together: `flat` holds them all, and `views` each one in its parameter's shape."""

    def __init__(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        first = next(iter(parameters.values()))
        self.parameters = parameters
        self.flat = torch.zeros(sum(p.numel() for p in parameters.values()), dtype=first.dtype, device=first.device)
        parts = self.flat.split([p.numel() for p in parameters.values()])
        self.views = {name: part.view(p.shape) for (name, p), part in zip(parameters.items(), parts, strict=True)}
        self.missing: set[str] = set()
        self.work: dist.Work | None = None

    def reset(self) -> None:
        self.missing = set(self.parameters)
        self.work = None

    def put(self, name: str) -> None:
        """Move a parameter's gradient, or zeros if it has none, into the bucket. `grad` becomes a view of it."""
        parameter = self.parameters[name]
        view = self.views[name]
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad.is_sparse:
            raise TypeError(
                f"the gradient of {name!r} is sparse: expected a dense one; use an embedding's sparse=False"
            )
        elif parameter.grad is not view:
            view.copy_(parameter.grad.detach())
            parameter.grad = view
        self.missing.remove(name)

    def average(self, group: dist.ProcessGroup | None) -> None:
        """Start the all-reduce. Dividing first keeps 16-bit sums in range, and gloo has no average."""
        self.flat.div_(dist.get_world_size(group))
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)

    def wait(self) -> None:
        assert self.work is not None
        self.work.wait()


class DDP(torch.nn.Module):
    """A module whose gradients are the mean over all ranks when `backward()` returns.

    Use it in place of the module, on every rank: `loss = criterion(ddp(inputs), targets); loss.backward()`. With equal
    batches per rank and losses that are means, training equals that of one process on the concatenated batch.

    - Parameters and buffers are copied from rank 0 at the start, and buffers again before each forward that follows one
      with gradients.
    - `grad` is a view into a bucket (torch's `gradient_as_bucket_view`). The next backward writes to the same memory.
    - Frozen parameters do not take part. Freeze them before wrapping.
    - Each forward has one backward, which reaches every trained parameter. With `find_unused_parameters` the graph of
      each forward is searched. Parameters without a gradient count as 0, and if no rank has one, `grad` stays None.

    Args:
        group: the ranks that share the work. By default all.
        bucket_cap_mb, first_bucket_mb: see `assign_buckets`.

    Raises:
        ValueError: ranks disagree about names, shapes, dtypes or frozen parameters, or nothing is to be trained.
    """

    buckets: list[Bucket]
    """The buckets, in the order in which they are averaged."""

    def __init__(
        self,
        module: torch.nn.Module,
        group: dist.ProcessGroup | None = None,
        *,
        bucket_cap_mb: float = BUCKET_CAP_MB,
        first_bucket_mb: float = FIRST_BUCKET_MB,
        find_unused_parameters: bool = False,
    ) -> None:
        super().__init__()
        require_in_group(group, "DDP")
        self.module = module
        self.group = group
        self.find_unused_parameters = find_unused_parameters
        buckets = replicas_in_buckets(module, group, "average", bucket_cap_mb, first_bucket_mb)
        self.buckets = [Bucket(parameters) for parameters in buckets]
        for bucket in self.buckets:
            for name, parameter in bucket.parameters.items():
                parameter.register_post_accumulate_grad_hook(partial(self._gradient_ready, bucket, name))
        self._synchronizes = True
        self._shared_buffers = SharedBuffers(module, group)
        self._state: Literal["idle", "local", "forward", "backward"] = "idle"
        self._launched = 0
        self._unreachable: list[tuple[Bucket, str]] = []

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on each rank without communication; the first backward after it averages the sums.
        Forward must be inside too."""
        before = self._synchronizes
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = before

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        if self._synchronizes:
            self._shared_buffers.before_forward()
        output = self.module(*arguments, **keywords)
        self._shared_buffers.after_forward()
        if torch.is_grad_enabled():
            self._prepare([leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad])
        return output

    def _prepare(self, outputs: list[Tensor]) -> None:
        """Expect gradients, if this forward is to be synchronised."""
        self._state = "forward" if self._synchronizes else "local"
        if not self._synchronizes:
            return
        self._launched = 0
        for bucket in self.buckets:
            bucket.reset()
        for output in outputs:
            if output.grad_fn is not None:  # reached also where no parameter is
                output.register_hook(self._begin_backward)
        reachable = _reachable(outputs) if self.find_unused_parameters else None
        self._unreachable = [
            (bucket, name)
            for bucket in self.buckets
            for name, parameter in bucket.parameters.items()
            if reachable is not None and parameter not in reachable
        ]

    def _begin_backward(self, _: Any = None) -> None:
        """Ask autograd, at the first gradient of a backward pass, to call `_finish` at its end."""
        if self._state == "forward":
            self._state = "backward"
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            for bucket, name in self._unreachable:
                bucket.put(name)
            self._launch_full_buckets()

    def _gradient_ready(self, bucket: Bucket, name: str, _: Tensor) -> None:
        """Hook of each parameter, called once in a backward, after its last use was accumulated."""
        if self._state == "local":
            return
        if self._state == "idle":
            raise RuntimeError(
                f"a gradient for {name!r} would not be averaged: it comes from a second backward since the last "
                "forward, or from the wrapped module itself. Call the DDP module, and sum losses for a single backward"
            )
        self._begin_backward()
        if name not in bucket.missing:
            raise RuntimeError(
                f"{name!r} got a second gradient in one backward, after its bucket was filled: expected one. Reentrant "
                "checkpoints do that for parameters used twice; use torch.utils.checkpoint(…, use_reentrant=False)"
            )
        bucket.put(name)
        self._launch_full_buckets()

    def _launch_full_buckets(self) -> None:
        """Launch full buckets in their fixed order, since all ranks must call the same collectives."""
        while self._launched < len(self.buckets) and not self.buckets[self._launched].missing:
            self.buckets[self._launched].average(self.group)
            self._launched += 1

    def _finish(self) -> None:
        """Launch the remaining buckets at the end of backward, then wait for all."""
        self._state = "idle"
        missing = [(bucket, name) for bucket in self.buckets for name in bucket.parameters if name in bucket.missing]
        if missing and not self.find_unused_parameters:
            raise RuntimeError(
                f"on rank {dist.get_rank(self.group)} there is no gradient for {', '.join(n for _, n in missing)}: "
                "expected one for each parameter, else ranks would wait for one another. Freeze them before "
                "wrapping, or pass find_unused_parameters=True"
            )
        for bucket, name in missing:  # reachable from the outputs, and yet not from the loss
            bucket.put(name)
        self._launch_full_buckets()
        if self.find_unused_parameters:
            self._adopt_gradients_of_others()
        for bucket in self.buckets:
            bucket.wait()

    def _adopt_gradients_of_others(self) -> None:
        """A parameter without a gradient here gets the average where another rank has one."""
        all_parameters = [(bucket, name, p) for bucket in self.buckets for name, p in bucket.parameters.items()]
        device = self.buckets[0].flat.device
        used = torch.tensor([p.grad is not None for _, _, p in all_parameters], dtype=torch.int32, device=device)
        dist.all_reduce(used, group=self.group)
        for (bucket, name, parameter), count in zip(all_parameters, used.tolist(), strict=True):
            if count and parameter.grad is None:
                parameter.grad = bucket.views[name]


def _reachable(outputs: list[Tensor]) -> set[Tensor]:
    """The leaves to which the autograd graph of these outputs leads."""
    todo: list[Any] = [torch.autograd.graph.get_gradient_edge(output).node for output in outputs]
    seen: set[Any] = set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [following for following, _ in node.next_functions]
    return {node.variable for node in seen if hasattr(node, "variable")}
