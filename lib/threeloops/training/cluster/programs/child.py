"""Turn a forked process into a rank of a cluster, or into another process of this library."""

import ctypes
import faulthandler
import linecache
import multiprocessing.util
import os
import pickle
import random
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import cloudpickle

from threeloops.places import is_cell
from threeloops.resident import settle
from threeloops.training.cluster.machine.faults import SlowRank
from threeloops.training.cluster.programs.actor import ActorSocket, is_library, name_of
from threeloops.training.cluster.programs.group import register
from threeloops.training.cluster.programs.handles import Rank
from threeloops.training.cluster.programs.printed import bounded_text
from threeloops.training.cluster.programs.world import OwnStore, enter_world, environment

__all__ = ["Program", "be_process", "be_rank", "by_cloudpickle", "current_rank", "die_with_parent"]

Program = Callable[[], tuple[Callable[..., Any], Sequence[Any], Sequence[SlowRank], bool]]
"""Gives, in the rank's process, the function to run, its arguments, how slow the rank is, and whether its memory is to
be measured."""

_current: Rank | None = None


def current_rank() -> Rank | None:
    """The rank that this process is; None outside of a virtual cluster."""
    return _current


def by_cloudpickle(result: Any) -> bytes:
    """Encode what a program returned, for a process that trusts the rank."""
    try:
        return cloudpickle.dumps(result)
    except Exception as error:
        raise TypeError(f"the program returned {type(result).__name__}, which cannot be sent: {error}") from None


def be_rank(
    rank: int,
    nodes: Sequence[int],
    descriptors: Sequence[int],
    program: Program,
    encode: Callable[[Any], bytes] = by_cloudpickle,
) -> None:
    """Run a program as rank `rank`, and never return.

    `nodes` has the node of each rank, and `descriptors` are the rank's socket and the file for its output. `encode`
    turns what the program returns into bytes.
    """
    global _current
    connection, printed = descriptors
    die_with_parent()
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    sys.stdout, sys.stderr = (bounded_text(number) for number in (1, 2))
    os.environ.update(environment(rank, nodes))
    # torch 2.13 has new names for two collectives, and 2.11 only the old ones: each rank would print two lines per run.
    old = "reduce_scatter_tensor|all_gather_into_tensor"
    warnings.filterwarnings("ignore", rf"`torch\.distributed\.({old})` is deprecated", FutureWarning)
    actor = ActorSocket(socket.socket(fileno=connection))
    faulthandler.register(signal.SIGUSR1, connection, all_threads=False)  # see Sockets.exchange
    try:
        actor.resume()
        function, arguments, slow, measured = program()
        actor.slow = [fault for fault in slow if fault.rank == rank]
        _current = Rank(rank, len(nodes), actor)
        register(_current)
        enter_world(rank, len(nodes), "virtual", lambda _: OwnStore(), _take_over)
        _scatter_addresses(rank)
        if measured:
            settle()
            actor.pause()
        result = function(*arguments)
        _current.finish()
        actor.end(result=encode(result))
        actor.resume()  # until the other side has seen what it wants to see of this process
    except EOFError:
        pass
    except BaseException as error:
        actor.end(_said(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _take_over() -> None:
    """Let this process, which the rank has started with `multiprocessing`, be the rank until it ends."""
    assert _current is not None
    if multiprocessing.parent_process() is None:
        _current.main.refuse("calls init_process_group but is not from the multiprocessing module")
    _current.main.take_over()
    multiprocessing.util.Finalize(None, _hand_back, exitpriority=-1)


def _hand_back() -> None:
    """Hand back the result at the end of such a process, which may be an exception."""
    assert _current is not None
    try:
        if (error := sys.exc_info()[1]) and (not isinstance(error, SystemExit) or error.code):
            raise error
        _current.finish()
        _current.main.hand_back()
    except BaseException as failure:
        _current.main.end(_said(failure))


def be_process(rank: int, descriptors: Sequence[int], pickled: bytes) -> None:
    """Call a function of this library with a rank's number, in the environment of the process that asked for it, and
    never return. `descriptors` are the standard output, the standard error and the current folder of the asking
    process."""
    die_with_parent()
    output, errors, folder = descriptors
    status = 1
    try:
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.fchdir(folder)
        sys.stdout, sys.stderr = (open(number, "w", 1, closefd=False) for number in (1, 2))  # noqa: SIM115
        environment, cores, function = pickle.loads(pickle.loads(pickled)[1])
        os.environ.clear()
        os.environ.update(environment)
        if cores:
            os.sched_setaffinity(0, cores)
        function(rank)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _scatter_addresses(rank: int) -> None:
    """Let new objects have other addresses on each rank, as on machines of their own: forks of one process would have
    the same, and with them the same order of a set of parameters.
    """
    step = 2 * random.Random(rank).randrange(_BLOCKS // 2) + 1  # odd, so its multiples reach every block
    for size in (64, 80, 96):  # of tensors, modules and small objects
        blocks = [bytes(size - sys.getsizeof(b"")) for _ in range(_BLOCKS)]
        mixed = [blocks[number * step % _BLOCKS] for number in range(_BLOCKS)]
        _kept.extend(mixed[_BLOCKS // 2 :])
        del blocks, mixed  # frees the other half in that order


_BLOCKS = 256
_kept: list[bytes] = []


def _said(error: BaseException) -> str:
    """Format the exception with the frames of the program, but without those of libraries, which say little. Frames of
    a notebook's cells are lines such as `  in train, line 3: loss.backward()`."""
    pairs = list(traceback.walk_tb(error.__traceback__))[1:]
    own = [pair for pair in pairs if not is_library(pair[0].f_code.co_filename)]
    lines = [_frame(frame.f_code, line) for frame, line in own or pairs]
    return "".join([*lines, *traceback.format_exception_only(error)]).rstrip()


def _frame(code: CodeType, line: int) -> str:
    text = linecache.getline(code.co_filename, line).strip()
    if is_cell(code.co_filename):
        return f"  in {name_of(code)}, line {line}: {text}\n"
    return f'  File "{code.co_filename}", line {line}, in {code.co_name}\n' + f"    {text}\n" * bool(text)


def die_with_parent() -> None:
    """Ask Linux to kill this process when the process that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
