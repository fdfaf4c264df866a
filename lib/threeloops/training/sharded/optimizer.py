"""ZeRO-1 and ZeRO-2 (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
section 5): an optimizer whose states, and in stage 2 whose gradients, are cut into one part per rank.

An all-reduce is a reduce-scatter followed by an all-gather. Data parallelism updates all parameters on all ranks after
both. Here each rank updates its part between them. So a step sends the same bytes, and no rank needs the states of the
others.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from threeloops.training.data_parallel import clip_grad_norm
from threeloops.training.data_parallel.buckets import BUCKET_CAP_MB, FIRST_BUCKET_MB
from threeloops.training.data_parallel.replicas import SharedBuffers, replicas_in_buckets, require_in_group
from threeloops.training.sharded.flat import FlatGradient, FlatLayout, load_shards, shards_state

__all__ = ["ZeroBucket", "ZeroOptimizer"]


class ZeroBucket:
    """Parameters that are reduced and gathered together. Their values are views of one flat tensor. `shard` is this
    rank's part of it. `master` is the tensor that the optimizer updates: the shard, or a float32 copy if the shard has
    16 bits."""

    def __init__(
        self, parameters: dict[str, torch.nn.Parameter], group: dist.ProcessGroup | None, keep_gradients: bool
    ) -> None:
        self.layout = FlatLayout(parameters, dist.get_world_size(group))
        self._group = group
        self._rank = dist.get_rank(group)
        self._values = self.layout.flatten(parameters)
        for name, view in self.layout.views(self._values).items():
            parameters[name].data = view
        self.shard = torch.nn.Parameter(self.layout.shard(self._values, self._rank))
        narrow = self.shard.element_size() < 4
        self.master = torch.nn.Parameter(self.shard.detach().float()) if narrow else self.shard
        self.gradient = FlatGradient(parameters, self.layout, self.shard, group, keep=keep_gradients)

    def gather(self) -> dist.Work:
        """Start to give all ranks the updated parameters of all shards."""
        if self.master is not self.shard:
            self.shard.data.copy_(self.master.detach())
        chunk = self.layout.chunk(self._values, self._rank)
        return dist.all_gather_into_tensor(self._values, chunk, group=self._group, async_op=True)


class ZeroOptimizer:
    """Train a module on all ranks with an optimizer that is cut into one part per rank.

    Use it like the optimizer of one process: `zero = ZeroOptimizer(model, torch.optim.AdamW, lr=1e-3)`, then
    `model(inputs)`, `backward()`, `zero.step()` and `zero.zero_grad()` on every rank. Training equals that of DDP with
    the same optimizer, bit for bit under the conditions that `flat` states.

    - Parameters and buffers are copied from rank 0 at the start, and buffers later as with DDP.
    - Gradients are reduced during backward, bucket by bucket. In stage 1 each parameter's `grad` stays until
      `zero_grad()`, as a view of its bucket: 1/ranks of it is averaged, and the rest has no use. In stage 2 it is
      freed when its bucket is reduced.
    - Frozen parameters do not take part. Freeze them before.
    - All parameters have the same options, since one flat tensor holds many of them.

    Args:
        optimizer_class: any optimizer that treats each element by itself, like SGD, Adam and AdamW, but not one that
            needs the shape of a parameter (Muon, Shampoo) or its norm (LAMB): see `LayerwiseOptimizer`. `options` are
            its own.
        stage: 1 cuts the optimizer's states and float32 masters, 2 also the gradients.
        bucket_cap_mb, first_bucket_mb: see `assign_buckets`.
        buckets_in_flight: the most buckets that hold gradients that are not reduced yet. The backward waits before it
            fills another one (stage 2).

    Raises:
        ValueError: ranks disagree about the module, nothing is to be trained, or the stage does not exist.
    """

    buckets: list[ZeroBucket]
    """The buckets, in the order in which they are reduced."""
    optimizer: torch.optim.Optimizer
    """The optimizer of the shards, with one parameter per bucket. A learning-rate scheduler takes it."""

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None = None,
        *,
        stage: int = 2,
        bucket_cap_mb: float = BUCKET_CAP_MB,
        first_bucket_mb: float = FIRST_BUCKET_MB,
        buckets_in_flight: int = 2,
        **options: Any,
    ) -> None:
        if stage not in (1, 2):
            raise ValueError(f"stage = {stage}: expected 1 or 2; DDP is stage 0, and FSDP stage 3")
        if buckets_in_flight < 1:
            raise ValueError(f"buckets_in_flight = {buckets_in_flight}: expected 1 or more")
        require_in_group(group, "ZeroOptimizer")
        buckets = replicas_in_buckets(module, group, "optimize", bucket_cap_mb, first_bucket_mb)
        self.stage = stage
        self.group = group
        self._limit = buckets_in_flight
        self.buckets = [ZeroBucket(dict(reversed(bucket.items())), group, stage == 1) for bucket in buckets]
        self.optimizer = optimizer_class([bucket.master for bucket in self.buckets], **options)
        for bucket in self.buckets:
            for name, parameter in bucket.gradient.parameters.items():
                parameter.register_post_accumulate_grad_hook(partial(self._gradient_ready, bucket, name))
        self._synchronizes = True
        self._in_backward = False
        self._launched = 0
        self._reducing: deque[ZeroBucket] = deque()
        buffers = SharedBuffers(module, group)
        module.register_forward_pre_hook(lambda *_: buffers.before_forward() if self._synchronizes else None)
        module.register_forward_hook(lambda *_: buffers.after_forward())

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which backward accumulates whole gradients on each rank without communication. The first
        backward after it averages the sums. In stage 2 it only saves communication: backwards add up by themselves."""
        before = self._synchronizes
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = before

    @torch.no_grad()
    def step(self) -> None:
        """Update this rank's shard with its averaged gradient, and gather the parameters of all ranks."""
        for bucket in self.buckets:
            if bucket.shard.grad is None:
                raise RuntimeError(
                    "there is no averaged gradient to step with: expected a backward, outside of no_sync(), since the "
                    "last zero_grad()"
                )
            bucket.master.grad = bucket.shard.grad.to(bucket.master.dtype)
        self.optimizer.step()
        gathering = [bucket.gather() for bucket in self.buckets]
        for bucket, work in zip(self.buckets, gathering, strict=True):
            work.wait()
            if bucket.master is not bucket.shard:
                bucket.master.grad = None

    def zero_grad(self) -> None:
        """Free all gradients."""
        for bucket in self.buckets:
            bucket.gradient.clear()

    def clip_grad_norm(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the averaged gradient so that its norm, over the shards of all ranks, is at most `max_norm`; returns
        the norm before. Every rank must call it."""
        shards = [bucket.shard for bucket in self.buckets]
        return clip_grad_norm(shards, max_norm, self.group, norm_type, sharded=True)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of this rank's state: masters and the optimizer's states, each as long as the shard."""
        layouts = [b.layout for b in self.buckets]
        masters = [b.master for b in self.buckets]
        return shards_state(layouts, masters, self.group) | {"optimizer": deepcopy(self.optimizer.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict` from the same rank of the same number of ranks. Every rank must call it,
        because parameters are gathered."""
        layouts = [b.layout for b in self.buckets]
        masters = [b.master for b in self.buckets]
        load_shards(state, layouts, masters, self.group)
        self.optimizer.load_state_dict(state["optimizer"])
        for work in [bucket.gather() for bucket in self.buckets]:
            work.wait()

    def _gradient_ready(self, bucket: ZeroBucket, name: str, _: Tensor) -> None:
        """Hook of each parameter, called once in a backward, after its last use was accumulated."""
        if not self._synchronizes:
            return
        if not self._in_backward:
            self._in_backward = True
            self._launched = 0
            for waiting in self.buckets:
                waiting.gradient.expect()
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        while self.stage == 2 and not bucket.gradient.collecting and len(self._reducing) >= self._limit:
            self._reducing.popleft().gradient.finish()
        bucket.gradient.put(name)
        while self._launched < len(self.buckets) and not self.buckets[self._launched].gradient.missing:
            self._reducing.append(self.buckets[self._launched])  # in order, since all ranks must call the same
            self._reducing[-1].gradient.reduce()
            self._launched += 1

    def _finish(self) -> None:
        """Finish the reductions at the end of backward."""
        self._in_backward = False
        while self._reducing:
            self._reducing.popleft().gradient.finish()
        if missing := sorted(name for bucket in self.buckets for name in bucket.gradient.missing):
            raise RuntimeError(
                f"on rank {dist.get_rank(self.group)} there is no gradient for {', '.join(missing)}: expected one for "
                "each parameter, else ranks would wait for one another. Freeze them before"
            )
