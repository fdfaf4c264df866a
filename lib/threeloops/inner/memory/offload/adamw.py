"""AdamW whose moments (and master weights) are kept elsewhere, and fetched, updated and written back in chunks.

The arithmetic is that of `torch.optim.AdamW(foreach=False)`, operation by operation, so the results are the same to the
last bit. Besides the parameters, it holds `buffers` chunks of state and one chunk of workspace, or two with master
weights. These stay allocated between steps: fresh pages for every chunk would cost more than the arithmetic on them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from threeloops.inner.memory.offload.channel import Channel, channel_for
from threeloops.inner.memory.offload.stores import HostStore, Store

__all__ = ["Chunk", "OffloadedAdamW", "TornStateError", "chunks_of"]


class TornStateError(RuntimeError):
    """A step failed half-way: some chunks of parameters and state belong to it, the others to the step before."""


@dataclass(frozen=True)
class Chunk:
    """`elements` of one parameter from `first` on, at `offset` in the store."""

    parameter: int
    first: int
    elements: int
    offset: int


def chunks_of(sizes: Iterable[int], largest: int) -> list[Chunk]:
    """Cut parameters of these sizes, in order, into chunks of at most `largest` elements."""
    if largest < 1:
        raise ValueError(f"chunk_elements = {largest}: expected at least 1")
    chunks = []
    base = 0
    for number, size in enumerate(sizes):
        for first in range(0, size, largest):
            chunks.append(Chunk(number, first, min(largest, size - first), base + first))
        base += size
    return chunks


class OffloadedAdamW:
    """AdamW over `parameters` with its state in a `store`.

    Moments are float32. For parameters of a shorter format, `masters` also keeps float32 copies in the store. Without
    it all parameters must be float32. `buffers` = 2 fetches the next chunk while this one is updated. 1 does one thing
    after another. Parameters must be contiguous and on one device. Raises ValueError or TypeError naming the argument
    that does not fit, and StateFileError if a store holds another state.
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
        self.lr = lr
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.kinds = ("exp_avg", "exp_avg_sq", *(("master",) if masters else ()))
        self.store = store or HostStore()
        self.chunks = chunks_of([p.numel() for p in self.parameters], chunk_elements)
        device = self.parameters[0].device
        largest = max(chunk.elements for chunk in self.chunks)
        self.steps = self.store.open(self.kinds, [tuple(p.shape) for p in self.parameters])
        if self.steps == 0:
            if masters:
                flat = torch.cat([p.detach().reshape(-1).float().cpu() for p in self.parameters])
                self.store.states["master"].copy_(flat)
            self.store.save(0)
        self._staging = [
            {kind: torch.empty(largest, device=device) for kind in self.kinds}
            for _ in range(min(buffers, len(self.chunks)))
        ]
        self._workspace = torch.empty(2 if masters else 1, largest, device=device)
        self._channel = channel or channel_for(device)
        self._torn = self._closed = False

    def _require(self, masters: bool, buffers: int) -> None:
        if not self.parameters:
            raise ValueError("parameters is empty: expected at least one tensor")
        if buffers < 1:
            raise ValueError(f"buffers = {buffers}: expected 1 (one after another) or 2 (fetch ahead) or more")
        for number, parameter in enumerate(self.parameters):
            if not parameter.is_contiguous() or parameter.device != self.parameters[0].device:
                raise ValueError(f"parameters[{number}]: expected contiguous tensors on one device")
            fits_float32 = parameter.is_floating_point() and parameter.dtype.itemsize <= torch.float32.itemsize
            if parameter.dtype != torch.float32 and not (masters and fits_float32):
                raise TypeError(
                    f"parameters[{number}] has dtype {parameter.dtype}: expected torch.float32; shorter formats need "
                    "masters=True, whose float32 keeps floating-point numbers of at most 4 bytes"
                )
        if not any(parameter.numel() for parameter in self.parameters):
            raise ValueError(f"parameters: no element in all {len(self.parameters)} of them; expected at least one")

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters; when it returns, all state is back in the store.

        Raises ValueError for a missing gradient and RuntimeError after `close`, before anything is changed. After any
        other error the state is torn: `step` and `save` raise TornStateError from then on.
        """
        self._require_whole()
        if self._closed:
            raise RuntimeError(f"step {self.steps + 1}: the optimizer is closed; make a new OffloadedAdamW to go on")
        for number, parameter in enumerate(self.parameters):
            if parameter.grad is None or not parameter.grad.is_contiguous():
                raise ValueError(f"parameters[{number}].grad: expected a contiguous gradient; run backward first")
        self._torn = True
        ahead = len(self._staging)
        arrived = [self._copy(number, fetch=True) for number in range(ahead)]
        written = []
        for number, chunk in enumerate(self.chunks):
            arrived[number]()
            self._update(chunk, self._staged(number), self.steps + 1)
            written.append(self._copy(number, fetch=False))
            if number + ahead < len(self.chunks):  # the channel keeps order: the buffer is free when the fetch begins
                arrived.append(self._copy(number + ahead, fetch=True))
        for wait in written:
            wait()
        if self.parameters[0].is_cuda:
            torch.cuda.synchronize()
        self.steps += 1
        self._torn = False

    def save(self) -> None:
        """Save this step in the store, as `FileStore.save` does. Raises TornStateError after a step that failed."""
        self._require_whole()
        self.store.save(self.steps)

    def close(self) -> None:
        """Close the channel; a finished step can still be saved."""
        if not self._closed:
            self._closed = True
            self._channel.close()

    def _require_whole(self) -> None:
        if self._torn:
            raise TornStateError(
                f"step {self.steps + 1} failed half-way: parameters and state are partly of step {self.steps}, partly "
                f"of step {self.steps + 1}; close this optimizer, then load the weights and the state of a save into a "
                "new one, or start again with both new"
            )

    def _staged(self, number: int) -> dict[str, Tensor]:
        """Return the part of a staging buffer that chunk `number` uses, by kind of state."""
        elements = self.chunks[number].elements
        return {kind: buffer[:elements] for kind, buffer in self._staging[number % len(self._staging)].items()}

    def _copy(self, number: int, *, fetch: bool) -> Callable[[], None]:
        """Queue the copy of chunk `number` from the store, or back to it; the result waits for it."""
        chunk = self.chunks[number]
        states = self.store.states
        pairs = [(b, states[kind][chunk.offset :][: chunk.elements]) for kind, b in self._staged(number).items()]
        return self._channel.submit(pairs if fetch else [(there, here) for here, there in pairs])

    def _update(self, chunk: Chunk, state: dict[str, Tensor], step: int) -> None:
        parameter = self.parameters[chunk.parameter]
        values = parameter.view(-1)[chunk.first :][: chunk.elements]
        gradient = parameter.grad.view(-1)[chunk.first :][: chunk.elements]
        divisor, *others = self._workspace[:, : chunk.elements]
        if others:
            gradient = others[0].copy_(gradient)
        target = state.get("master", values)
        beta1, beta2 = self.betas
        target.mul_(1 - self.lr * self.weight_decay)
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (1 - beta2**step) ** 0.5
        torch.sqrt(state["exp_avg_sq"], out=divisor).div_(root).add_(self.eps)
        target.addcdiv_(state["exp_avg"], divisor, value=-self.lr / (1 - beta1**step))
        if target is not values:
            values.copy_(target)
