"""AdamW whose moments (and master weights) do not live beside the parameters: fetched, updated, put back, in chunks.

The arithmetic is that of `torch.optim.AdamW(foreach=False)`, operation by operation, so its steps are the same to the
last bit. Memory beside the parameters: `buffers` chunks of state instead of all of it, and one of workspace, two with
masters. It is kept from step to step: fresh pages for every chunk would cost more than the arithmetic on them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from threeloops.inner.offload.channel import Channel, channel_for
from threeloops.inner.offload.stores import HostStore, Store


@dataclass(frozen=True)
class Chunk:
    """Elements `first` … `end` − 1 of one parameter; they lie at `offset` in the store."""

    parameter: int
    first: int
    end: int
    offset: int

    @property
    def elements(self) -> int:
        return self.end - self.first


def chunks_of(sizes: Iterable[int], largest: int) -> list[Chunk]:
    """Parameters of these sizes in order, each cut into chunks of at most `largest` elements."""
    if largest < 1:
        raise ValueError(f"chunk_elements = {largest}: expected at least 1")
    found, base = [], 0
    for number, size in enumerate(sizes):
        for first in range(0, size, largest):
            found.append(Chunk(number, first, min(first + largest, size), base + first))
        base += size
    return found


class OffloadedAdamW:
    """AdamW over `parameters` with its state in a `store`.

    Moments are float32. `masters` also keeps float32 copies of the parameters in the store, for parameters of a shorter
    format; without it all parameters must be float32. `buffers` = 2 fetches the next chunk while this one is updated;
    1 does one thing after another. Parameters must be contiguous, on one device. Raises ValueError or TypeError naming
    what does not fit, StateFileError where a store holds something else.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        store: Store | None = None,
        masters: bool = False,
        buffers: int = 2,
        chunk_elements: int = 1 << 22,
        channel: Channel | None = None,
    ):
        self.parameters = list(parameters)
        self._require(masters, buffers)
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.kinds = ("exp_avg", "exp_avg_sq", *(("master",) if masters else ()))
        self.store = store or HostStore()
        self.chunks = chunks_of([p.numel() for p in self.parameters], chunk_elements)
        device, largest = self.parameters[0].device, max(chunk.elements for chunk in self.chunks)
        self.steps = self.store.open(self.kinds, sum(p.numel() for p in self.parameters))
        if masters and self.steps == 0:
            flat = torch.cat([p.detach().reshape(-1).float().cpu() for p in self.parameters])
            self.store.states["master"].copy_(flat)
        self._staging = [
            {kind: torch.empty(largest, device=device) for kind in self.kinds}
            for _ in range(min(buffers, len(self.chunks)))
        ]
        self._workspace = torch.empty(2 if masters else 1, largest, device=device)
        self._channel = channel or channel_for(device)

    def _require(self, masters: bool, buffers: int) -> None:
        if not self.parameters:
            raise ValueError("parameters is empty: expected at least one tensor")
        if buffers < 1:
            raise ValueError(f"buffers = {buffers}: expected 1 (one after another) or 2 (fetch ahead) or more")
        for number, parameter in enumerate(self.parameters):
            if not parameter.is_contiguous() or parameter.device != self.parameters[0].device:
                raise ValueError(f"parameters[{number}]: expected contiguous tensors on one device")
            if parameter.dtype != torch.float32 and not (masters and parameter.is_floating_point()):
                raise TypeError(
                    f"parameters[{number}] has dtype {parameter.dtype}: expected torch.float32; shorter formats need "
                    "masters=True"
                )

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One update of all parameters; when it returns, all state is back in the store. Each needs a gradient."""
        for number, parameter in enumerate(self.parameters):
            if parameter.grad is None or not parameter.grad.is_contiguous():
                raise ValueError(f"parameters[{number}].grad: expected a contiguous gradient; run backward first")
        self.steps += 1
        arrived: list[Callable[[], None]] = []
        written: list[Callable[[], None]] = []
        ahead = len(self._staging)
        for chunk, staging in zip(self.chunks, self._staging, strict=False):
            arrived.append(self._channel.submit(self._copies(chunk, staging, fetch=True)))
        for number, chunk in enumerate(self.chunks):
            staging = self._staging[number % ahead]
            arrived[number]()
            self._update(chunk, {kind: buffer[: chunk.elements] for kind, buffer in staging.items()})
            written.append(self._channel.submit(self._copies(chunk, staging, fetch=False)))
            if number + ahead < len(self.chunks):  # the channel keeps order: its buffer is free when the fetch begins
                following = self._copies(self.chunks[number + ahead], staging, fetch=True)
                arrived.append(self._channel.submit(following))
        for wait in written:
            wait()
        if self.parameters[0].is_cuda:
            torch.cuda.synchronize()

    def save(self) -> None:
        """Let the store make this step last; see `FileStore.save`."""
        self.store.save(self.steps)

    def close(self) -> None:
        self._channel.close()

    def _copies(self, chunk: Chunk, staging: dict[str, Tensor], *, fetch: bool) -> list[tuple[Tensor, Tensor]]:
        pairs = []
        for kind, buffer in staging.items():
            here = buffer[: chunk.elements]
            there = self.store.states[kind][chunk.offset : chunk.offset + chunk.elements]
            pairs.append((here, there) if fetch else (there, here))
        return pairs

    def _update(self, chunk: Chunk, state: dict[str, Tensor]) -> None:
        parameter = self.parameters[chunk.parameter]
        values = parameter.view(-1)[chunk.first : chunk.end]
        gradient = parameter.grad.view(-1)[chunk.first : chunk.end]
        divisor, *others = self._workspace[:, : chunk.elements]
        if others:
            gradient = others[0].copy_(gradient)
        target = state.get("master", values)
        beta1, beta2 = self.betas
        target.mul_(1 - self.lr * self.weight_decay)
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (1 - beta2**self.steps) ** 0.5
        torch.sqrt(state["exp_avg_sq"], out=divisor).div_(root).add_(self.eps)
        target.addcdiv_(state["exp_avg"], divisor, value=-self.lr / (1 - beta1**self.steps))
        if target is not values:
            values.copy_(target)
