"""Ranks as forks of the process that holds the program, for a router in another process. Behind the wall the student's
functions are in the sandbox, and the grader keeps the clocks.

The grader calls `start`, `exchange`, `result`, `printed` and `end` in this order, with plain data. `warm_up` is for the
process that a submission's process is forked from.
"""

import importlib
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cloudpickle

from threeloops.training.cluster.machine.faults import SlowRank
from threeloops.training.cluster.processes.ranks import Sockets
from threeloops.training.cluster.processes.warm import import_parallel
from threeloops.training.cluster.programs.child import be_rank

__all__ = ["end", "exchange", "printed", "result", "start", "warm_up"]

_PARALLEL = ("torch.nn.parallel", "torch.distributed.fsdp", "torch.distributed.tensor")
_COMPILING = ("torch.optim", "torch.utils.flop_counter")
"""Modules that import the compiler when they are first used."""


class _Hub:
    """The one run at a time."""

    sockets: Sockets | None = None
    children: list[int] = []
    said: dict[int, bytes] = {}


def warm_up(modules: Iterable[str]) -> None:
    """Import modules that ranks need if their program uses names of these modules. Otherwise each rank would import for
    seconds what it can inherit."""
    used = list(modules)
    importlib.import_module("torch.fx.experimental.symbolic_shapes")  # which `backward(gradient)` imports
    if any(each.startswith(_COMPILING) for each in used):
        importlib.import_module("torch._dynamo")
    if any(each.startswith(_PARALLEL) for each in used):
        import_parallel()


def start(
    nodes: Sequence[int],
    program: Callable[..., Any],
    arguments: Sequence[Any],
    slow: Sequence[SlowRank],
    seconds: float,
    measured: bool,
) -> None:
    """Fork one rank for each of `nodes`, which says in which node it is; each runs `program(*arguments)`."""
    end()
    warm_up(str(getattr(each, "__module__", "")) for each in getattr(program, "__globals__", {}).values())

    def launch(descriptors: list[list[int]]) -> list[int]:
        for rank, given in enumerate(descriptors):
            child = os.fork()
            if child == 0:
                be_rank(rank, nodes, given, lambda: (program, arguments, slow, measured))
            _Hub.children.append(child)
        return _Hub.children

    _Hub.sockets = Sockets(len(nodes), launch, seconds)


def exchange(told: Sequence[tuple[int, bytes]]) -> list[tuple[bytes, bytes]]:
    """Tell ranks to continue, and return what they report."""
    assert _Hub.sockets
    heard = [(bytes(said), bytes(data)) for said, data in _Hub.sockets.exchange([(r, [part]) for r, part in told])]
    _Hub.said |= {rank: data for (rank, _), (_, data) in zip(told, heard, strict=True)}
    return heard


def result(rank: int) -> Any:
    """Return the program's result on a rank that has ended."""
    return cloudpickle.loads(_Hub.said[rank])


def printed() -> str:
    """Return the output of all ranks."""
    return _Hub.sockets.printed() if _Hub.sockets else ""


def end() -> None:
    """End all ranks; returns when they are gone."""
    for child in _Hub.children:
        os.kill(child, signal.SIGKILL)
    for child in _Hub.children:
        os.waitpid(child, 0)
    if _Hub.sockets:
        _Hub.sockets.close()
    _Hub.sockets, _Hub.children, _Hub.said = None, [], {}
