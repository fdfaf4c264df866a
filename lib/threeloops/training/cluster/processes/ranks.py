"""The processes of one run, as the router sees them: each continues when told to, and then reports until it waits."""

import contextlib
import itertools
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import torch

from threeloops.frames import Channel, TooLarge
from threeloops.resident import ResidentMemory
from threeloops.simulation.one_core import one_core as on_one_core
from threeloops.training.cluster.machine.calls import COMPUTE, MOST_SAID, Ask, Call, End, Send, Submit
from threeloops.training.cluster.machine.errors import ClusterError, RankFailed
from threeloops.training.cluster.machine.faults import corrupt
from threeloops.training.cluster.machine.records import Actor, Resumption
from threeloops.training.cluster.processes.communicator import Communicator
from threeloops.training.cluster.programs.actor import ANSWER, HEAD, line_in_stack
from threeloops.training.cluster.programs.printed import log, text_of
from threeloops.training.cluster.programs.tensors import packed, unpacked

__all__ = ["Ranks", "Served", "Sockets", "Transport", "one_core"]

Served = Mapping[str, Callable[..., Any]]
"""Functions that ranks may ask, by name."""

_decoder, _encoder = msgspec.msgpack.Decoder(list[Call]), msgspec.msgpack.Encoder()

_STACK_SECONDS = 0.5
_STATUS_SECONDS = 1.0
_Told = list[tuple[int, Sequence[Any]]]
"""Pairs of a rank and the parts of the message to it."""
_Heard = Iterable[tuple[Any, memoryview]]
"""Pairs of a rank's message and the bytes that come with it, in the order of the ranks that were told to continue."""


class Transport(Protocol):
    """How to reach the ranks."""

    def exchange(self, told: _Told) -> _Heard:
        """Let these ranks continue, and receive what they do. Raises ClusterError if one of them does not answer."""

    def measure_memory(self) -> None:
        """Begin to measure the memory of the ranks."""

    def memory(self) -> list[int]:
        """Return by how many bytes each rank has grown at most. Raises ClusterError if this is unknown."""


class Sockets:
    """Ranks on this machine, each at the end of a socket.

    Args:
        size: the number of ranks.
        launch: starts one process for each list of descriptors (its socket, and a file for its output), and returns
            their process numbers.
        seconds: the real time after which a running rank has failed. It begins when all ranks have been launched.
        statuses: returns the exit status of each process, None for one that is still running. Not every caller knows
            it.
        most: the number of bytes that a rank may send at once. None if the ranks are trusted.
    """

    def __init__(
        self,
        size: int,
        launch: Callable[[list[list[int]]], list[int]],
        seconds: float,
        statuses: Callable[[], list[int | None]] | None = None,
        most: int | None = None,
    ) -> None:
        self._statuses = statuses
        self._most = most
        self._channels: list[Channel] = []
        self._printed = [log() for _ in range(size)]
        theirs = []
        for _ in range(size):
            ours, other = socket.socketpair()
            self._channels.append(Channel(ours))
            theirs.append(other)
        try:
            self._processes = launch(
                [[other.fileno(), file.fileno()] for other, file in zip(theirs, self._printed, strict=True)]
            )
        finally:
            for other in theirs:
                other.close()
        self._seconds, self._deadline = seconds, time.monotonic() + seconds

    def exchange(self, told: _Told) -> _Heard:
        rank = 0
        remaining = self._deadline - time.monotonic()
        try:
            for rank, parts in told:
                self._channels[rank].bound(remaining)
                self._channels[rank].send(parts)
            for rank, _ in told:
                self._channels[rank].bound(self._deadline - time.monotonic())
                _, encoded, data = self._channels[rank].receive(HEAD, self._most)
                yield encoded, data
        except TimeoutError:
            raise ClusterError(
                f"rank {rank} was at work when the {self._seconds:g} s of real time for this run were over"
                f"{self._stands_at(rank)}: does it hang, or need more seconds?"
            ) from None
        except TooLarge as error:
            raise ClusterError(f"rank {rank}: {error}") from None
        except (EOFError, OSError):
            raise RankFailed(f"rank {rank}: its process ended without a word{self._ended(rank)}") from None

    def _stands_at(self, rank: int) -> str:
        """Return the line at which a silent rank stands. The rank sends its stack when it gets the signal."""
        with contextlib.suppress(OSError):
            self._request_stack(rank)
            return line_in_stack(self._channels[rank].rest(_STACK_SECONDS).decode(errors="replace"))
        return ""

    def _request_stack(self, rank: int) -> None:
        os.kill(self._processes[rank], signal.SIGUSR1)

    def _ended(self, rank: int) -> str:
        """Say how a rank ended that has closed its socket. Its exit status comes a moment later."""
        if self._statuses is None:
            return ""
        end = time.monotonic() + _STATUS_SECONDS
        while (status := self._statuses()[rank]) is None and time.monotonic() < end:
            time.sleep(0.01)
        if status is None:
            return ""
        return f", with exit status {status}" if status >= 0 else f", by {signal.Signals(-status).name}"

    def measure_memory(self) -> None:
        self._resident = ResidentMemory(self._processes)

    def memory(self) -> list[int]:
        try:
            return self._resident.growth()
        except ProcessLookupError as error:
            raise ClusterError(f"the memory of a rank cannot be told: {error}") from None

    def printed(self) -> str:
        """Return the output of all ranks, each line with its rank."""
        lines = []
        for rank, file in enumerate(self._printed):
            lines += [f"[rank {rank}] {line}" for line in text_of(file).splitlines()]
        return "\n".join(lines)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        for file in self._printed:
            file.close()


class Ranks:
    """The ranks of one run, from the router's side. `Router.run` calls `step`.

    If the memory of the ranks is `measured`, they pause when they are ready to begin, and the measurement begins then.
    `served` has the functions that ranks may ask. Each gets the rank and the arguments that the rank has sent.
    """

    def __init__(self, transport: Transport, measured: bool = False, served: Served | None = None) -> None:
        self.results: dict[int, memoryview] = {}
        self._transport = transport
        self._begin = 1 if measured else -1
        self._steps = itertools.count()
        self._errors: dict[int, str] = {}
        self._communicator = Communicator()
        self._sent: dict[tuple[int, int], memoryview] = {}
        self._served = dict(served or {})
        self._answers: dict[int, bytes] = {}

    def step(self, batch: list[tuple[Actor, float, Resumption]]) -> Iterator[Sequence[Call]]:
        """Let actors continue, all at once, and read in turn what each does until it waits."""
        if next(self._steps) == self._begin:
            self._transport.measure_memory()
        told: _Told = [(turn[0].rank, self._answer(*turn)) for turn in batch if turn[0].timeline == COMPUTE]
        heard = iter(self._transport.exchange(told))
        for turn in batch:
            if turn[0].timeline == COMPUTE:
                yield self._accept(turn[0].rank, *next(heard))
            else:
                yield self._communicator.step(*turn)

    def _answer(self, actor: Actor, at: float, resumption: Resumption) -> list[Any]:
        news = resumption.error or resumption.finished
        parts: list[Any] = [_encoder.encode((resumption.error, resumption.finished)) if news else b""]
        for handle, message in itertools.zip_longest(resumption.handles, resumption.messages):
            if message is None:
                parts.append(self._communicator.take(actor.rank, handle))
            else:
                data = self._sent.pop((message.source, message.handle))
                if message.corrupted:
                    corrupt(data := memoryview(bytearray(data)))
                parts.append(data)
        parts.append(self._answers.pop(actor.rank, b""))
        return [ANSWER.pack(at, len(parts[0]), sum(map(len, parts[1:]))), *parts]

    def _accept(self, rank: int, encoded: Any, data: memoryview) -> Sequence[Call]:
        try:
            calls = _decoder.decode(encoded)
        except msgspec.DecodeError as error:
            raise ClusterError(f"rank {rank} sent a message that is not a call: {error}") from None
        for call in calls:
            if isinstance(call, Send | Submit | Ask):
                if call.size > len(data):
                    raise ClusterError(f"rank {rank} sends {call.size:,} bytes, of which {len(data):,} came")
                part = data[: call.size]
                data = data[call.size :]
                if isinstance(call, Send):
                    self._sent[rank, call.handle] = part
                elif isinstance(call, Ask):
                    self._answers[rank] = self._answer_to(rank, call.name, part)
                else:
                    self._communicator.submit(rank, call, part)
            elif isinstance(call, End):
                self.results[rank] = data
                if call.error:
                    self._errors[rank] = call.error
        return [call for call in calls if not isinstance(call, Ask)]

    def _answer_to(self, rank: int, name: str, data: memoryview) -> bytes:
        """Encode the error and the result of a served function for a rank, whose question is not trusted."""
        try:
            if name not in self._served:
                raise LookupError(f"rank {rank} asks for {name!r}: served here are {sorted(self._served) or 'none'}")
            return packed(("", self._served[name](rank, *unpacked(data))))
        except Exception as error:
            return packed((str(error)[:MOST_SAID] or type(error).__name__, None))

    def raise_failure(self) -> None:
        """Raise RankFailed if a rank failed, with its traceback."""
        if self._errors:
            rank, trace = min(self._errors.items())
            others = len(self._errors) - 1
            more = f"\n({others} other rank{'s' * (others > 1)} failed too)" if others else ""
            raise RankFailed(f"rank {rank} failed:\n{trace}{more}")


@contextlib.contextmanager
def one_core() -> Iterator[int]:
    """Keep this thread on one core for a while, as `simulation.one_core` does.

    Meanwhile torch uses only the calling thread, because threads that it starts now would stay on that core forever.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with on_one_core() as core:
            yield core
    finally:
        torch.set_num_threads(threads)
