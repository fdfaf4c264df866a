"""A rank's side of the conversation with the router: it reports what it does, and is told when it may continue.

Calls are collected and sent when the actor waits, so a rank needs one write and one read per wait. A batch is `<u32
bytes of calls, u64 bytes of messages>`, the calls (MessagePack), and the bytes of each message that they send, in
order. The answer is `<f64 time, u32 bytes of status, u64 bytes of messages>`, then the status, then the messages. The
status is an error and the sends that have left (MessagePack). The messages have the order in which the actor waited for
them.
"""

import functools
import itertools
import mmap
import multiprocessing
import os
import pickle
import re
import socket
import struct
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import NoReturn

import msgspec
import torch

from threeloops.frames import Channel
from threeloops.places import is_cell, source_name
from threeloops.training.cluster.machine.calls import (
    MOST_SAID,
    Ask,
    Call,
    Charge,
    Collective,
    End,
    Receive,
    Send,
    Submit,
    Wait,
)
from threeloops.training.cluster.machine.errors import RankLost
from threeloops.training.cluster.machine.faults import SlowRank

__all__ = ["ANSWER", "HEAD", "ActorSocket", "calling_line", "is_library", "line_in_stack", "name_of"]

HEAD, ANSWER = struct.Struct("<IQ"), struct.Struct("<dIQ")
_SMALL = 1 << 16
_STATE = 16
_encoder = msgspec.msgpack.Encoder()
_status_decoder = msgspec.msgpack.Decoder(tuple[str, list[tuple[int, float]]])


class ActorSocket:
    """The program of this rank. `now` is its clock, and it reports everything that it does to the router with that
    time."""

    def __init__(self, connection: socket.socket) -> None:
        self.now = 0.0
        self.slow: Sequence[SlowRank] = ()
        self._channel = Channel(connection)
        self._calls: list[Call] = []
        self._bytes: list[memoryview] = []
        self._sizes: dict[int, int] = {}
        self._finished: dict[int, float] = {}
        self._sends: dict[int, str] = {}
        self._handles: Iterator[int] = itertools.count(1)
        self._thread = threading.get_ident()
        self._refused = ""
        self._shared: mmap.mmap | bytearray
        try:
            self._shared = mmap.mmap(-1, _SMALL)  # the forks of this process see it too
        except OSError:  # a sandbox forbids it, and then none of them can take over
            self._shared = bytearray(_SMALL)
        self._owner = memoryview(self._shared).cast("q")
        self._owner[0] = os.getpid()
        self._flushes = 0

    def check_thread(self) -> None:
        """Raise if this call or an earlier one came from a process or a thread other than the program's. With two
        callers, their order would decide what the ranks do, and it differs from run to run."""
        if self._owner[0] == 0:
            self._speak()
        if self._owner[0] != os.getpid():
            self.refuse("communicates beside the one that runs it")
        if threading.get_ident() != self._thread:
            self._refused = self._refused or (
                f"a second thread of this rank, {threading.current_thread().name!r}, communicates or computes "
                f"({calling_line()}): on the virtual cluster all calls of a rank come from the thread that runs its "
                "program. Call from there, with async_op=True if work is to overlap"
            )
        if self._refused:
            raise RuntimeError(self._refused)

    def take_over(self) -> None:
        """Let this process, a fork of the one that has spoken for the rank, speak for it until `hand_back`."""
        if isinstance(self._shared, bytearray) or (self._owner[0] and self._owner[1] != self._flushes):
            self.refuse("begins to communicate beside the one that runs it")
        self._speak()

    def hand_back(self) -> None:
        """Leave the rank to the process that started this one."""
        self.pause()
        state = pickle.dumps((self.now, next(self._handles), self._flushes, self._sizes, self._finished, self._sends))
        self._shared[_STATE : _STATE + len(state)] = state
        self._owner[0] = 0

    def _speak(self) -> None:
        """Speak for the rank from here on, from where another process has left it."""
        if self._owner[0] == 0:
            state = pickle.loads(self._shared[_STATE:])
            self.now, handle, self._flushes, self._sizes, self._finished, self._sends = state
            self._handles = itertools.count(handle)
            self._calls = []
            self._bytes = []
        self._owner[0], self._thread = os.getpid(), threading.get_ident()

    def refuse(self, what: str) -> NoReturn:
        """Fail the rank from a process that does not speak for it, and raise there too."""
        refused = (
            f"a second process of this rank, {multiprocessing.current_process().name!r}, {what} ({calling_line()}): on "
            "the virtual cluster all calls of a rank come from one process. Call from there, or let the process that "
            "is to communicate begin with init_process_group, with the number of its rank"
        )
        self._calls = []
        self._bytes = []
        self.end(refused)
        raise RuntimeError(refused)

    def send(self, data: memoryview, to: int, channel: str, tag: int) -> int:
        """Ask for a message to leave; the bytes must not change before `wait(handle)` returns."""
        self.check_thread()
        handle = next(self._handles)
        self._sends[handle] = calling_line()
        self._calls.append(Send(handle, to, channel, tag, data.nbytes, self.now, self._sends[handle]))
        self._bytes.append(data)
        return handle

    def receive(self, size: int, source: int, channel: str, tag: int) -> int:
        self.check_thread()
        handle = next(self._handles)
        self._calls.append(Receive(handle, source, channel, tag, size, self.now, calling_line()))
        self._sizes[handle] = size
        return handle

    def charge(self, seconds: float, what: str = "") -> None:
        self.check_thread()
        for fault in self.slow:
            if fault.at <= self.now < fault.until:
                seconds *= fault.factor
        self._calls.append(Charge(seconds, self.now, what))
        self.now += seconds

    def submit(
        self, collective: Collective, data: memoryview, sends: Sequence[int], gets: Sequence[int], size: int
    ) -> int:
        """Begin a collective with these bytes, whose result on this rank has `size` bytes."""
        self.check_thread()
        handle = next(self._handles)
        where = calling_line()
        self._calls.append(Submit(handle, self.now, collective, data.nbytes, tuple(sends), tuple(gets), where))
        self._bytes.append(data)
        self._sizes[handle] = size
        return handle

    def wait(self, *handles: int) -> list[memoryview]:
        """Stop until everything in `handles` has happened. Returns the bytes that came for each handle: a message, a
        result, or none.

        Raises:
            RankLost: a rank died, and the timeout is over.
        """
        self.check_thread()
        for handle in handles:
            self._sends.pop(handle, None)
        finished = {handle: self._finished.pop(handle) for handle in handles if handle in self._finished}
        data = memoryview(b"")
        if unknown := tuple(handle for handle in handles if handle not in finished):
            self._calls.append(Wait(unknown, self.now, calling_line()))
            self._flush()
            data = self.resume()
        self.now = max(self.now, *finished.values()) if finished else self.now
        received = []
        for handle in handles:
            size = self._sizes.pop(handle, 0)
            received.append(data[:size])
            data = data[size:]
        return received

    def pause(self) -> None:
        """Stop until all other ranks have stopped or wait. Then continue at the same virtual time."""
        self._calls.append(Wait((), self.now))
        self._flush()
        self.resume()

    def ask(self, name: str, data: bytes) -> memoryview:
        """Return the answer of the function that is served as `name`, next to the router. It takes no virtual time."""
        self.check_thread()
        self._calls += [Ask(self.now, name, len(data)), Wait((), self.now, calling_line())]
        self._bytes.append(memoryview(data))
        self._flush()
        return self.resume()

    def wait_for_values(self, handle: int) -> memoryview:
        """Stop until the result of a collective is there, without letting the clock pass."""
        self.check_thread()
        self._calls.append(Wait((handle,), self.now, calling_line(), values=True))
        self._flush()
        del self._sizes[handle]
        return self.resume()

    def end(self, error: str = "", result: bytes = b"") -> None:
        self._calls.append(End(self.now, error[-MOST_SAID:], next(iter(self._sends.values()), None)))
        self._bytes.append(memoryview(result))
        self._flush()

    def resume(self) -> memoryview:
        """Wait until this actor may continue, and return the bytes that came."""
        (self.now, _, _), status, data = self._channel.receive(ANSWER)
        if status:
            error, finished = _status_decoder.decode(status)
            self._finished.update(finished)
            if error:
                raise RankLost(error)
        return data

    def _flush(self) -> None:
        calls = _encoder.encode(self._calls)
        body = sum(len(part) for part in self._bytes)
        self._channel.send([HEAD.pack(len(calls), body), calls, *self._bytes])
        self._calls = []
        self._bytes = []
        self._flushes += 1
        self._owner[1] = self._flushes


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_LIBRARIES += (f"{Path(__file__).parents[3]}{os.sep}", "<frozen ")


def is_library(path: str) -> bool:
    """Whether a file of source text belongs to Python, to an installed package or to this one."""
    return path.startswith(_LIBRARIES)


def line_in_stack(stack: str) -> str:
    """The line outside of libraries at which a stack of `faulthandler` stands, for a message."""
    frames = re.findall(r'File "(.+)", line (\d+) in (\S+)', stack)
    own = [frame for frame in frames if not is_library(frame[0])]
    if not own:
        return ""
    file, line, name = own[0]
    return f" ({name}, line {line})" if is_cell(file) else f", in {name} ({source_name(file)}:{line})"


def calling_line() -> str:
    """Return the line outside of libraries that makes the call: `file:line`, or `function, line n` in a notebook, whose
    cells have no names. In a backward pass it is the line of a forward or backward function, and the text says so."""
    way = " in backward" if torch._C._current_graph_task_id() >= 0 else ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = _named(frame.f_code)
        if name is not None:
            return f"{name}{frame.f_lineno}{way}"
        frame = frame.f_back
    return ""


@functools.lru_cache(1024)
def _named(code: CodeType) -> str | None:
    """How its lines are called, up to the number; None for code of libraries."""
    name = code.co_filename
    if is_library(name):
        return None
    return f"{name_of(code)}, line " if is_cell(name) else f"{source_name(name)}:"


def name_of(code: CodeType) -> str:
    """The name of a function for a message: of a method with its class, of an inner function with the outer one."""
    return code.co_qualname.replace("<locals>.", "")
