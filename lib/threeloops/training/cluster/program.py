"""Calls from a program to the cluster that it runs on. On real processes the same program runs unchanged."""

import time
from typing import Any

import torch
import torch.distributed as dist

from threeloops.training.cluster.programs.child import current_rank
from threeloops.training.cluster.programs.tensors import packed, unpacked

__all__ = ["advance_to", "ask", "charge", "compute", "now", "synchronize"]


def compute(seconds: float, what: str = "") -> None:
    """Charge `seconds` of computation to this rank's clock; on real processes, sleep for as long."""
    if not seconds >= 0:
        raise ValueError(f"seconds = {seconds}: expected 0 or more")
    if (rank := current_rank()) is None:
        time.sleep(seconds)
    else:
        rank.main.charge(seconds, what)


def charge(x: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
    """Return `x`, and charge `forward` seconds of computation now and `backward` seconds when its gradient passes. Call
    it at the end of a layer, so that the time is charged before the gradients of the layer's parameters are ready."""
    return _Charge.apply(x, forward, backward)


class _Charge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        ctx.seconds = backward
        compute(forward, "forward")
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        compute(ctx.seconds, "backward")
        return gradient, None, None


def now() -> float:
    """This rank's clock in seconds: virtual, or the machine's."""
    rank = current_rank()
    return time.perf_counter() if rank is None else rank.main.now


def advance_to(at: float) -> None:
    """Set this rank's clock to `at` seconds, so that all ranks begin what follows at the same time. On real processes,
    whose clocks differ, wait for one another."""
    if current_rank() is None:
        dist.barrier()
        return
    synchronize()
    if now() > at:
        raise ValueError(f"at = {at} s: this rank's clock is at {now()} s already")
    compute(at - now())


def synchronize() -> None:
    """Wait for the collectives whose values were used before their time was over, as `torch.cuda.synchronize` does."""
    if (rank := current_rank()) is not None:
        rank.synchronize()


def ask(name: str, *arguments: Any) -> Any:
    """Call the function that `Cluster.run` serves under this name with `(rank, *arguments)`, and return its result.

    The function runs next to the router, not in the rank's process. So it can give each rank its own part of some data,
    and count what each rank asks for. Arguments and the result consist of numbers, texts, lists and tensors. Tensors
    arrive without gradients.

    Raises:
        RuntimeError: the function raised an exception (the message has its text), nothing is served under this name, or
            this process is not a rank of a virtual cluster.
    """
    if (rank := current_rank()) is None:
        raise RuntimeError(f"ask({name!r}, …): only ranks of a virtual cluster can ask; run it with Cluster.run")
    error, value = unpacked(rank.main.ask(name, packed(arguments)))
    if error:
        raise RuntimeError(error)
    return value
