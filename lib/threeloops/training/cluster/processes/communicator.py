"""Run the jobs of the ranks' communication timelines: each collective as rings and trees of messages, as in NCCL.

The jobs run beside the router, on the bytes that the ranks have submitted. So a collective costs a rank one question
and one answer, however many messages it takes.
"""

from collections import defaultdict
from collections.abc import Callable, Generator
from typing import Any

import torch

from threeloops.training.cluster.machine.calls import Call, Finish, Receive, Send, Submit, Wait
from threeloops.training.cluster.machine.errors import ClusterError
from threeloops.training.cluster.machine.faults import corrupt
from threeloops.training.cluster.machine.records import Actor, Message, Resumption
from threeloops.training.cluster.programs.tensors import DTYPES, REDUCTIONS, as_bytes

__all__ = ["Communicator"]

_MOST_ELEMENTS = 1 << 31

_Received = Generator[Call, list[torch.Tensor] | None, torch.Tensor]
_Steps = Generator[Call, list[torch.Tensor] | None, None]


class Communicator:
    """The communication timelines of all ranks. `submit` takes a rank's job, `step` continues a rank's timeline, and
    `take` returns the result of a job, once."""

    def __init__(self) -> None:
        self._submitted: dict[tuple[int, int], tuple[Submit, torch.Tensor]] = {}
        self._running: dict[int, tuple[Submit, _Peer, _Received]] = {}
        self._results: dict[tuple[int, int], torch.Tensor] = {}
        self._sent: dict[tuple[int, int], torch.Tensor] = {}
        self._handles: dict[int, int] = defaultdict(int)
        self._broken: dict[tuple[int, str], str] = {}
        """Groups in which a collective failed on a rank, and the reason. As with NCCL's communicators, they are
        unusable on that rank, so later jobs fail at once."""

    def submit(self, rank: int, call: Submit, data: memoryview) -> None:
        """Raises ClusterError for an impossible job, because a rank may send anything."""
        made = call.collective
        dtype = DTYPES.get(made.dtype)
        if dtype is None:
            raise ClusterError(f"rank {rank} submits {made}: expected one of the dtypes {', '.join(DTYPES)}")
        if made.operation not in _JOBS:
            raise ClusterError(f"rank {rank} submits {made}: expected one of the operations {', '.join(_JOBS)}")
        if made.reduction not in REDUCTIONS:
            raise ClusterError(f"rank {rank} submits {made}: expected one of the reductions {', '.join(REDUCTIONS)}")
        if made.operation == "barrier" and data:
            raise ClusterError(f"rank {rank} submits a barrier with {len(data)} bytes: expected none")
        if not {len(call.sends), len(call.gets)} <= {0, 1, len(made.ranks)} or sum(call.gets) > _MOST_ELEMENTS:
            raise ClusterError(f"rank {rank} submits {made} with parts {call.sends} and {call.gets}")
        if made.ranks.count(rank) != 1 or not 0 <= made.root < len(made.ranks):
            raise ClusterError(f"rank {rank} submits {made.operation} to ranks {made.ranks}, root {made.root}")
        if len(data) % dtype.itemsize:
            raise ClusterError(f"rank {rank} submits {len(data)} bytes of {made.dtype}")
        tensor = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
        self._submitted[rank, call.handle] = call, tensor

    def step(self, actor: Actor, at: float, resumption: Resumption) -> list[Call]:
        """Continue the timeline until it waits or the job is done."""
        rank = actor.rank
        received = None
        if rank in self._running:
            received = [self._take_message(message) for message in resumption.messages if message]
        else:
            submitted, tensor = self._submitted.pop((rank, int(resumption.number)))
            if error := self._broken.get((rank, submitted.collective.group)):
                return [Finish(at, error)]
            me = _Peer(self, submitted, rank)
            self._running[rank] = submitted, me, _JOBS[submitted.collective.operation](me, tensor, submitted)
        submitted, me, job = self._running[rank]
        me.now = at
        calls: list[Call] = []
        try:
            if resumption.error:
                job.close()
                del self._running[rank]
                self._broken[rank, submitted.collective.group] = resumption.error
                return [Finish(at, resumption.error)]
            calls.append(job.send(received))
            while not isinstance(calls[-1], Wait):
                calls.append(job.send(None))
            return calls
        except StopIteration as end:
            del self._running[rank]
            self._results[rank, submitted.handle] = end.value
            return [*calls, Finish(at)]
        except RuntimeError as error:  # a reduction that the dtype does not have, or sizes that do not add up
            raise ClusterError(f"rank {rank}: {submitted.collective.operation}: {error}") from None

    def take(self, rank: int, handle: int) -> memoryview:
        """Return the bytes of a job's result, or none if they were taken before."""
        result = self._results.pop((rank, handle), None)
        return memoryview(b"") if result is None else as_bytes(result)

    def new_handle(self, rank: int) -> int:
        self._handles[rank] += 1
        return self._handles[rank]

    def put_message(self, rank: int, handle: int, tensor: torch.Tensor) -> None:
        self._sent[rank, handle] = tensor.clone()

    def _take_message(self, message: Message) -> torch.Tensor:
        tensor = self._sent.pop((message.source, message.handle))
        if message.corrupted:
            corrupt(as_bytes(tensor))
        return tensor


class _Peer:
    """One rank of a group, on its communication timeline. Ranks are counted within the group."""

    def __init__(self, communicator: Communicator, submitted: Submit, rank: int) -> None:
        self.ranks = submitted.collective.ranks
        self.now = 0.0
        self.size, self.rank = len(self.ranks), self.ranks.index(rank)
        self._communicator = communicator
        self._global = rank
        self._channel = submitted.collective.group
        self._where = submitted.where

    def send(self, tensor: torch.Tensor, to: int) -> Send:
        handle = self._communicator.new_handle(self._global)
        self._communicator.put_message(self._global, handle, tensor)
        return Send(handle, self.ranks[to % self.size], self._channel, 0, tensor.nbytes, self.now, self._where)

    def receive(self, size: int, source: int) -> Receive:
        handle = self._communicator.new_handle(self._global)
        return Receive(handle, self.ranks[source % self.size], self._channel, 0, size, self.now, self._where)

    def exchange(self, out: torch.Tensor, to: int, size: int, source: int) -> _Received:
        """Send to one rank while receiving `size` bytes from another."""
        sent = self.send(out, to)
        got = self.receive(size, source)
        yield sent
        yield got
        received = yield Wait((got.handle, sent.handle), self.now)
        assert received
        return received[0]

    def send_and_wait(self, out: torch.Tensor, to: int) -> _Steps:
        sent = self.send(out, to)
        yield sent
        yield Wait((sent.handle,), self.now)

    def receive_and_wait(self, size: int, source: int) -> _Received:
        got = self.receive(size, source)
        yield got
        received = yield Wait((got.handle,), self.now)
        assert received
        return received[0]

    def ring(
        self, step: Callable[[int], tuple[torch.Tensor, torch.Tensor]], put: Callable[[torch.Tensor, torch.Tensor], Any]
    ) -> _Steps:
        """Take size − 1 steps: `step(k)` names what to send to the next rank, and where to `put` what the previous rank
        sends."""
        for k in range(self.size - 1):
            out, into = step(k)
            put(into, (yield from self.exchange(out, self.rank + 1, into.nbytes, self.rank - 1)))


def _ring_reduce_scatter(me: _Peer, chunks: list[torch.Tensor], reduction: str) -> _Steps:
    """Reduce so that chunk r of rank r holds the result, reduced in the order r + 1, r + 2, …, r. An all-reduce uses
    the same order, as NCCL does (src/device/all_reduce.h), so both give the same bits if they cut the same chunks."""
    yield from me.ring(
        lambda k: (chunks[(me.rank - k - 1) % me.size], chunks[(me.rank - k - 2) % me.size]), REDUCTIONS[reduction]
    )
    if reduction == "AVG":
        chunks[me.rank].div_(me.size)


def _ring_all_gather(me: _Peer, chunks: list[torch.Tensor]) -> _Steps:
    """Chunk r of rank r goes around."""
    yield from me.ring(
        lambda k: (chunks[(me.rank - k) % me.size], chunks[(me.rank - k - 1) % me.size]), torch.Tensor.copy_
    )


def _all_reduce(me: _Peer, x: torch.Tensor, call: Submit) -> _Received:
    chunks = list(x.tensor_split(me.size))  # lengths differ by at most one
    yield from _ring_reduce_scatter(me, chunks, call.collective.reduction)
    yield from _ring_all_gather(me, chunks)
    return x


def _reduce_scatter(me: _Peer, x: torch.Tensor, call: Submit) -> _Received:
    chunks = list(x.split(call.sends))
    yield from _ring_reduce_scatter(me, chunks, call.collective.reduction)
    return chunks[me.rank]


def _all_gather(me: _Peer, x: torch.Tensor, call: Submit) -> _Received:
    out = x.new_empty(sum(call.gets))
    chunks = list(out.split(call.gets))
    chunks[me.rank].copy_(x)
    yield from _ring_all_gather(me, chunks)
    return out


def _broadcast(me: _Peer, x: torch.Tensor, call: Submit) -> _Received:
    """A binomial tree: after step k, 2^(k+1) ranks have it."""
    root = call.collective.root
    step = 1
    place = (me.rank - root) % me.size
    out = x if me.rank == root else x.new_empty(sum(call.gets))
    while step < me.size:
        if place < step and place + step < me.size:
            yield from me.send_and_wait(out, me.rank + step)
        elif step <= place < 2 * step:
            out = yield from me.receive_and_wait(out.nbytes, me.rank - step)
        step *= 2
    return out


def _reduce(me: _Peer, x: torch.Tensor, call: Submit) -> _Received:
    """Reduce along the same tree, from its leaves to its root. Afterwards the other ranks hold their own input."""
    root = call.collective.root
    out = x.clone()
    place = (me.rank - root) % me.size
    step = 1
    while step < me.size:
        if place % (2 * step):
            yield from me.send_and_wait(out, me.rank - step)
            return x
        if place + step < me.size:
            REDUCTIONS[call.collective.reduction](out, (yield from me.receive_and_wait(out.nbytes, me.rank + step)))
        step *= 2
    return out.div_(me.size) if call.collective.reduction == "AVG" else out


def _all_to_all(me: _Peer, x: torch.Tensor, call: Submit) -> _Received:
    """Send, in step k, to the rank k places after this one and receive from the one k places before it."""
    sends = x.split(call.sends)
    out = x.new_empty(sum(call.gets))
    gets = out.split(call.gets)
    gets[me.rank].copy_(sends[me.rank])
    for k in range(1, me.size):
        to = (me.rank + k) % me.size
        source = (me.rank - k) % me.size
        gets[source].copy_((yield from me.exchange(sends[to], to, gets[source].nbytes, source)))
    return out


def _gather(me: _Peer, x: torch.Tensor, call: Submit) -> _Received:
    """Gather at the root, one rank after the other."""
    root = call.collective.root
    if me.rank != root:
        yield from me.send_and_wait(x, root)
        return x.new_empty(0)
    parts = list(x.new_empty(sum(call.gets)).split(call.gets))
    parts[root] = x
    for source in range(me.size):
        if source != root:
            parts[source] = yield from me.receive_and_wait(parts[source].nbytes, source)
    return torch.cat(parts)


def _scatter(me: _Peer, x: torch.Tensor, call: Submit) -> _Received:
    """Scatter from the root, one rank after the other."""
    root = call.collective.root
    if me.rank != root:
        return (yield from me.receive_and_wait(x.new_empty(sum(call.gets)).nbytes, root))
    parts = x.split(call.sends)
    for to in range(me.size):
        if to != root:
            yield from me.send_and_wait(parts[to], to)
    return parts[root]


def _barrier(me: _Peer, x: torch.Tensor, call: Submit) -> _Received:
    """An empty message goes around."""
    yield from me.ring(lambda k: (x, x), lambda into, other: None)
    return x


_JOBS: dict[str, Callable[[_Peer, torch.Tensor, Submit], _Received]] = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
    "broadcast": _broadcast,
    "gather": _gather,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
}
