"""The warm process that ranks are forked from. It imports torch and its parallel modules once, so that a rank starts in
milliseconds.

Its parent sends it a pickled program and two descriptors per rank. It forks, and each rank runs the program as rank r
of a world that only these sockets reach. The parent can also ask for ordinary processes, which are forks too. All of
them end with the warm process, and the warm process ends with its parent.
"""

import array
import contextlib
import importlib
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from threeloops.forking import prepare_to_fork
from threeloops.frames import receive_exactly
from threeloops.training.cluster.processes.pickled import from_bytes, import_libraries, label_of
from threeloops.training.cluster.programs.child import (
    be_process,
    be_rank,
    by_cloudpickle,
    die_with_parent,
)
from threeloops.training.cluster.programs.group import hide_from_compiler

__all__ = [
    "AT_WORK", "COMMAND", "END", "PROCESS", "PROCESSES", "START", "STATUS", "be_unpacked_rank", "kill",
    "main", "warm_up",
]  # fmt: skip

COMMAND = struct.Struct("<4sIQi")
"""The command, the number of ranks, the bytes of the program that follows, and the core to run on or -1."""
START = b"RUN "
PROCESSES = b"FORK"
STATUS = b"LOOK"
END = b"END "
PROCESS = struct.Struct("<i")
"""The answer to `START` and `PROCESSES`, once per rank: its process; to `STATUS`, how each ended, or AT_WORK."""
AT_WORK = 1 << 30
_IMPORTED = (
    "torch._dynamo",
    "torch.nn.parallel.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
)
"""Modules that a program may need. In a fork without them, the first DDP would take seconds."""
_PARALLEL = ("torch.nn.parallel", "torch.distributed.fsdp", "torch.distributed.tensor")
_COMPILING = ("torch.optim", "torch.utils.flop_counter")
"""Modules that import the compiler when they are first used."""


def _import_parallel() -> None:
    """Import modules before ranks are forked, so that no rank has to import them."""
    for module in _IMPORTED:
        importlib.import_module(module)
    hide_from_compiler()


def warm_up(modules: Iterable[str]) -> None:
    """Import what a program may need if it uses names of these modules. Otherwise each rank would import it itself,
    which takes seconds."""
    used = list(modules)
    torch.ones(1).exp()  # torch notes now what the processor can do: behind the wall, a rank cannot read that
    importlib.import_module("torch.fx.experimental.symbolic_shapes")  # which `backward(gradient)` imports
    if any(module.startswith(_COMPILING) for module in used):
        importlib.import_module("torch._dynamo")
    if any(module.startswith(_PARALLEL) for module in used):
        _import_parallel()


def main() -> None:
    """Serve runs until the parent goes."""
    die_with_parent()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # who interrupts a notebook means its own process, which ends the ranks
    control = socket.socket(fileno=int(sys.argv[-1]))
    _import_parallel()
    torch.set_num_threads(1)
    prepare_to_fork()
    control.sendall(b"\0")
    children: dict[int, int] = {}
    while True:
        try:
            command, ranks, size, core = COMMAND.unpack(receive_exactly(control, COMMAND.size))
        except EOFError:
            break
        if command in (START, PROCESSES):
            program = bytes(receive_exactly(control, size))
            import_libraries(program)
            started = _fork(control, ranks, program, core) if command == START else _become(control, ranks, program)
            children = dict.fromkeys(started, AT_WORK)
            control.sendall(b"".join(map(PROCESS.pack, children)))
        elif command == STATUS:
            _look(children, os.WNOHANG)
            control.sendall(b"".join(map(PROCESS.pack, children.values())))
        else:
            _end(children)
            children = {}
            control.sendall(b"\0")
    _end(children)


def _fork(control: socket.socket, ranks: int, program: bytes, core: int) -> list[int]:
    children = []
    given = [_receive_descriptors(control, 2) for _ in range(ranks)]
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            control.close()
            for number, descriptors in enumerate(given):
                if number != rank:
                    for descriptor in descriptors:
                        os.close(descriptor)
            os.setpgid(0, 0)
            if core >= 0:
                os.sched_setaffinity(0, {core})
            be_unpacked_rank(rank, given[rank], program)
        children.append(child)
    for descriptors in given:
        for descriptor in descriptors:
            os.close(descriptor)
    return children


def _become(control: socket.socket, ranks: int, program: bytes) -> list[int]:
    children = []
    descriptors = _receive_descriptors(control, 3)
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            control.close()
            be_process(rank, descriptors, program)
        children.append(child)
    for descriptor in descriptors:
        os.close(descriptor)
    return children


def be_unpacked_rank(
    rank: int, descriptors: Sequence[int], pickled: bytes, encode: Callable[[Any], bytes] = by_cloudpickle
) -> None:
    """Be a rank of the program that `to_bytes` has pickled, and never return."""
    nodes, slow, measured = label_of(pickled)
    be_rank(rank, nodes, descriptors, lambda: (*from_bytes(pickled), slow, measured), encode)


def _receive_descriptors(control: socket.socket, count: int) -> list[int]:
    descriptors = array.array("i")
    _, extra, _, _ = control.recvmsg(1, socket.CMSG_LEN(count * descriptors.itemsize))
    for _, _, data in extra:
        descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return list(descriptors)


def _look(children: dict[int, int], how: int) -> None:
    """Note the exit status of each that has ended."""
    for child, status in children.items():
        if status == AT_WORK:
            ended, wait_status = os.waitpid(child, how)
            children[child] = os.waitstatus_to_exitcode(wait_status) if ended else AT_WORK


def _end(children: dict[int, int]) -> None:
    for child, status in children.items():
        kill(child, status == AT_WORK)
    _look(children, 0)


def kill(child: int, at_work: bool = True) -> None:
    """End a child that is at work, and if it leads a group of processes, those that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if at_work:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
