"""The router: a discrete-event machine that carries the messages of a cluster and keeps all of its clocks.

It knows nothing about processes. `Router.run(step)` calls `step` with the actors that may continue now, and gets back
what each of them did until it stopped: it waits for something, has finished a job, or has ended. Events are taken in
the order of virtual time, and ties are broken by kind and rank. So a run gives the same times, to the last digit,
whatever else the machine does. Actors that continue at the same moment may run in parallel, because nothing that one
does can reach another before a message has left.

A message leaves when its sender has asked for it and every port on its way is free. It occupies these ports for
size ÷ bandwidth, and arrives one latency later. Ports serve messages in the order in which they became ready. A waiting
receiver continues when the message arrives, or at once if it has arrived already. A waiting sender continues when the
bytes have left and the receiver has asked for them, as in gloo, and in NCCL once its buffers are full: if all ranks
send first, none continues. The messages of a collective have buffers, so their sends end when the bytes have left.
"""

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from threeloops.training.cluster.machine.calls import (
    COMMUNICATION,
    COMPUTE,
    Call,
    Charge,
    End,
    Finish,
    Receive,
    Send,
    Submit,
    Wait,
)
from threeloops.training.cluster.machine.errors import ClusterError
from threeloops.training.cluster.machine.faults import CorruptMessage, Fault, RankDies, SlowLink
from threeloops.training.cluster.machine.ledger import Ledger, at_line
from threeloops.training.cluster.machine.ports import Ports
from threeloops.training.cluster.machine.records import Actor, Message, Resumption, Span
from threeloops.training.cluster.machine.topology import Topology

__all__ = ["Router"]

_MOST_EVENTS = 5_000_000
_MOST_BYTES = 2 << 30
"""The most bytes that may be in flight or not yet received. A program that only sends must not fill the memory."""


class _Done(NamedTuple):
    at: float
    message: Message | None = None
    error: str = ""


class _Job(NamedTuple):
    handle: int
    ready: float
    what: str


_Key = tuple[int, int, int, str, int]
"""Sender, receiver, timeline of both, channel and tag. A message meets a receiver if all of them are equal."""
_LEAVES = 0
_RESUMES = 1
"""Kinds of events; at the same moment messages leave before actors go on."""

_Step = Callable[[list[tuple[Actor, float, Resumption]]], Iterable[Iterable[Call]]]


class Router:
    """One run of a cluster. After `run`: `messages`, `spans`, `clock` (by actor), `died`, and `events`, their number.

    Args:
        timeout: seconds for which a rank waits for one that has died.
    """

    def __init__(self, topology: Topology, faults: Sequence[Fault] = (), timeout: float = 600.0) -> None:
        self.topology = topology
        self.timeout = timeout
        self.spans: list[Span] = []
        self.clock: dict[Actor, float] = {}
        self.events = 0
        self.now = 0.0
        self._ledger = Ledger()
        self._dies = {fault.rank: fault.at for fault in faults if isinstance(fault, RankDies)}
        self._ports = Ports(topology, [fault for fault in faults if isinstance(fault, SlowLink)])
        self._corrupt = {(f.source, f.target, f.number) for f in faults if isinstance(f, CorruptMessage)}
        self._count: dict[tuple[int, int], int] = defaultdict(int)
        self._in_flight = 0
        self._queue: list[tuple[float, int, Actor, int, Any]] = []
        self._sent: dict[_Key, deque[Message]] = defaultdict(deque)
        self._posted: dict[_Key, deque[tuple[Actor, Receive]]] = defaultdict(deque)
        self._done: dict[tuple[Actor, int], _Done] = {}
        self._missing: dict[Actor, int] = {}
        self._last: dict[Actor, int] = {}  # handle
        self._finished: dict[Actor, list[tuple[int, float]]] = defaultdict(list)
        """The sends that an actor is told about when it continues."""
        self._jobs: dict[int, deque[_Job]] = defaultdict(deque)
        self._job: dict[int, tuple[_Job, float]] = {}

    # What happens, in the order of virtual time

    def run(self, step: _Step) -> None:
        """Run to the end.

        Raises:
            Deadlock: actors wait, and nothing is left that could wake them.
            Mismatch: two ranks of a group called different collectives, or differ about the size of a message.
            Unfinished: a message was never received, or a handle never waited for.
            ClusterError: an actor made an impossible call.
        """
        for rank in range(self.topology.ranks):
            self._push(0.0, _RESUMES, Actor(rank), Resumption())
        while (self._is_overdue() and self._give_up_waiting()) or self._queue or self._give_up_waiting():
            at, kind, actor, _, what = heapq.heappop(self._queue)
            self.now = max(self.now, at)  # who waited for values alone goes on in the past
            if kind == _LEAVES:
                self._leave(actor, what)
            else:
                batch = [(actor, what)]
                while self._queue and self._queue[0][:2] == (at, _RESUMES):
                    _, _, actor, _, what = heapq.heappop(self._queue)
                    batch.append((actor, what))
                self._go_on_at(at, batch, step)
        self._ledger.check_ended()

    def _go_on_at(self, at: float, actors: list[tuple[Actor, Resumption]], step: _Step) -> None:
        batch = []
        for actor, resumption in actors:
            if not (self._dies and self._dead_at(actor, at)):
                finished = self._finished.pop(actor, ())
                for handle, _ in finished:
                    self._ledger.begun.pop((actor, handle), None)
                batch.append((actor, at, resumption._replace(finished=tuple(finished)) if finished else resumption))
        for (actor, _, _), calls in zip(batch, step(batch), strict=True):
            self.clock[actor] = at
            for call in calls:
                self._do(actor, call)
                if actor.rank in self.died:
                    break

    @property
    def messages(self) -> list[Message]:
        """The messages in the order in which they left."""
        return self._ledger.messages

    @property
    def died(self) -> dict[int, float]:
        """The time at which each dead rank died."""
        return self._ledger.died

    def _push(self, at: float, kind: int, actor: Actor, what: Any) -> None:
        self.events += 1
        if self.events > _MOST_EVENTS:
            raise ClusterError(f"more than {_MOST_EVENTS:,} events: does {actor} send in an endless loop?")
        heapq.heappush(self._queue, (at, kind, actor, self.events, what))

    def _leave(self, sender: Actor, send: Send) -> None:
        """A message goes as soon as its ports are free."""
        pair = sender.rank, send.to
        start, departed = self._ports.take(pair, send.size, send.at)
        if self._dies and self._dead_at(sender, departed):  # before its last byte had left
            return
        message = Message(
            *pair,
            send.size,
            send.channel,
            send.tag,
            send.at,
            start,
            departed,
            departed + self.topology.routes[pair].latency,
            sender.timeline,
            send.handle,
            send.where,
            corrupted=(*pair, self._count[pair]) in self._corrupt,
        )
        self._count[pair] += 1
        self.messages.append(message)
        self._in_flight += send.size
        if self._in_flight > _MOST_BYTES:
            raise ClusterError(f"{self._in_flight:,} bytes were sent and not received, the last by {sender}")
        if sender.timeline == COMMUNICATION:  # collectives have buffers of their own
            self._happened(sender, send.handle, _Done(departed))
        key = (*pair, sender.timeline, send.channel, send.tag)
        self._sent[key].append(message)
        self._match(key)

    def _match(self, key: _Key) -> None:
        """Messages meet receivers in order: the first sent, the first asked for."""
        sent = self._sent[key]
        posted = self._posted[key]
        while sent and posted:
            message, (receiver, receive) = sent.popleft(), posted.popleft()
            self._ledger.check_sizes(message, receiver, receive)
            message.received = True
            self._in_flight -= message.size
            if receiver.timeline == COMPUTE:
                self._sent_away(Actor(message.source), message.handle, max(message.left, receive.at))
            self._happened(receiver, receive.handle, _Done(message.arrived, message))

    def _sent_away(self, sender: Actor, handle: int, at: float) -> None:
        """A program learns this with its next answer, and need not ask."""
        wait = self._ledger.waiting.get(sender)
        if wait is None or handle not in wait.handles:
            self._finished[sender].append((handle, at))
        else:
            self._happened(sender, handle, _Done(at))

    def _happened(self, actor: Actor, handle: int, done: _Done) -> None:
        """Note that the thing that `handle` stands for is done. Actors that wait for nothing else can continue."""
        self._done[actor, handle] = done
        wait = self._ledger.waiting.get(actor)
        if wait is not None and handle in wait.handles:
            self._missing[actor] -= 1
            if not self._missing[actor]:
                self._go_on(actor, wait)

    def _go_on(self, actor: Actor, wait: Wait) -> None:
        self._ledger.waiting.pop(actor, None)
        end = wait.at
        error = ""
        messages = []
        for handle in wait.handles:
            done = self._done[actor, handle]
            end = max(end, done.at)
            error = error or done.error
            messages.append(done.message)
        if wait.values:
            self._push(wait.at, _RESUMES, actor, Resumption(wait.handles, number=end, error=error))
            return
        for handle in wait.handles:
            self._done.pop((actor, handle), None)
            self._ledger.begun.pop((actor, handle), None)
        self._push(end, _RESUMES, actor, Resumption(wait.handles, tuple(messages), error=error))

    # What actors do

    def _do(self, actor: Actor, call: Call) -> None:
        if not self.clock[actor] <= call.at < math.inf:
            raise ClusterError(f"{actor} says it is {call.at} s, and it was {self.clock[actor]} s before")
        if not (self._dies and self._dead_at(actor, call.at)):
            self.clock[actor] = call.at
            _DO[type(call)](self, actor, call)

    def _send(self, actor: Actor, call: Send) -> None:
        self._check_peer(actor, call.to, f"sends to rank {call.to}{at_line(call.where)}")
        self._begin(actor, call)
        if call.at < self.now:
            raise ClusterError(
                f"{actor} sends at {call.at:g} s{at_line(call.where)}, after the values of a collective that ended at "
                f"{self.now:g} s: wait for the collective first"
            )
        self._push(call.at, _LEAVES, actor, call)

    def _receive(self, actor: Actor, call: Receive) -> None:
        self._check_peer(actor, call.source, f"receives from rank {call.source}{at_line(call.where)}")
        self._begin(actor, call)
        key = (call.source, *actor, call.channel, call.tag)
        self._posted[key].append((actor, call))
        self._match(key)

    def _begin(self, actor: Actor, call: Send | Receive | Submit) -> None:
        if call.handle <= self._last.get(actor, -1):
            raise ClusterError(f"{actor} uses handle {call.handle}{at_line(call.where)} twice")
        self._last[actor] = call.handle
        self._ledger.begun[actor, call.handle] = call

    def _check_peer(self, actor: Actor, peer: int, what: str) -> None:
        if not (0 <= peer < self.topology.ranks and peer != actor.rank):
            raise ClusterError(f"{actor} {what}: expected another rank, 0 to {self.topology.ranks - 1}")

    def _charge(self, actor: Actor, call: Charge) -> None:
        if not 0 <= call.seconds < math.inf:
            raise ClusterError(f"{actor} computes for {call.seconds} s: expected a finite number, 0 or more")
        end = min(call.at + call.seconds, self._dies.get(actor.rank, math.inf))
        self.clock[actor] = end
        self.spans.append(Span(actor.rank, actor.timeline, call.at, end, call.what))

    def _submit(self, actor: Actor, call: Submit) -> None:
        self._ledger.check_agreement(actor.rank, call)
        self._begin(actor, call)
        self._jobs[actor.rank].append(_Job(call.handle, call.at, call.collective.operation))
        self._next_job(actor.rank)

    def _next_job(self, rank: int) -> None:
        if rank in self._job or not self._jobs[rank]:
            return
        job = self._jobs[rank].popleft()
        actor = Actor(rank, COMMUNICATION)
        start = max(job.ready, self.clock.get(actor, 0.0))
        self._job[rank] = job, start
        self._push(max(start, self.now), _RESUMES, actor, Resumption(number=job.handle))

    def _finish(self, actor: Actor, call: Finish) -> None:
        if actor.rank not in self._job or actor.timeline != COMMUNICATION:
            raise ClusterError(f"{actor} finishes a collective that it never began")
        job, start = self._job.pop(actor.rank)
        self.spans.append(Span(actor.rank, COMMUNICATION, start, call.at, job.what))
        self._happened(Actor(actor.rank), job.handle, _Done(call.at, error=call.error))
        self._next_job(actor.rank)

    def _wait(self, actor: Actor, call: Wait) -> None:
        for untold in [untold for untold in self._finished.get(actor, ()) if untold[0] in call.handles]:
            self._finished[actor].remove(untold)
            self._done[actor, untold[0]] = _Done(untold[1])
        missing = [handle for handle in call.handles if (actor, handle) not in self._done]
        self._missing[actor] = len(missing)
        self._ledger.check_begun(actor, call)
        if missing:
            self._ledger.waiting[actor] = call
        else:
            self._go_on(actor, call)

    def _end(self, actor: Actor, call: End) -> None:
        self._ledger.ended[actor.rank] = call

    # Ranks that die

    def _dead_at(self, actor: Actor, at: float) -> bool:
        """Whether the actor's rank is dead at that time. The first time that it is asked, the rank dies."""
        dies = self._dies.get(actor.rank, math.inf)
        if at < dies:
            return False
        if actor.rank not in self.died:
            self.died[actor.rank] = dies
            for dead in (Actor(actor.rank), Actor(actor.rank, COMMUNICATION)):
                self._ledger.waiting.pop(dead, None)
            if actor.rank in self._job:
                job, start = self._job.pop(actor.rank)
                self.spans.append(Span(actor.rank, COMMUNICATION, start, max(start, dies), job.what))
        return True

    def _is_overdue(self) -> bool:
        """Whether, after a death, somebody's timeout is over before anything else happens."""
        stuck = self._ledger.stuck(self._done) if self.died and self._queue else []
        return bool(stuck) and stuck[0][0] + self.timeout < self._queue[0][0]

    def _give_up_waiting(self) -> bool:
        """Let the next thing happen when all ranks wait: either a rank dies, or the rank that has waited longest for a
        message or a receiver gets an error after its timeout, whichever comes first."""
        stuck = self._ledger.stuck(self._done)
        at = stuck[0][0] + self.timeout if stuck and self.died else math.inf
        over = self._ledger.ended.keys() | self.died.keys()
        dies, rank = min(((dies, rank) for rank, dies in self._dies.items() if rank not in over), default=(math.inf, 0))
        if dies < math.inf and dies <= at:
            return self._dead_at(Actor(rank), dies) and self._give_up_waiting()
        if at == math.inf or any(end.error for end in self._ledger.ended.values()):
            return False
        _, actor, call = stuck[0]
        self._ledger.waiting.pop(actor)
        self._ledger.begun.pop((actor, call.handle))
        if isinstance(call, Receive):
            self._posted[call.source, *actor, call.channel, call.tag].remove((actor, call))
        error = self._ledger.describe_loss(call, self.timeout)
        self._push(at, _RESUMES, actor, Resumption(error=error))
        return True


_DO: dict[type, Callable[[Router, Actor, Any], None]] = {
    Send: Router._send,
    Receive: Router._receive,
    Charge: Router._charge,
    Submit: Router._submit,
    Wait: Router._wait,
    Finish: Router._finish,
    End: Router._end,
}
