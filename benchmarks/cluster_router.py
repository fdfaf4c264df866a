"""How fast the virtual cluster is in real time: its router alone, through processes, and the start of ranks.

Each has a floor as its peer: what the same machine needs for the queue, the round trips, or the forks alone.
"""

from __future__ import annotations

import heapq
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from threeloops.training.cluster import Cluster, fabric, uniform
from threeloops.training.cluster.machine.calls import Call, End, Receive, Send, Wait
from threeloops.training.cluster.machine.records import Actor, Resumption
from threeloops.training.cluster.machine.router import Router

from benchmarks.result import Series

__all__ = ["router_facts", "router_rows"]

ROUTER, QUEUE, TRIPS, FORKS = "virtual cluster", "heapq alone", "socket round trips on one core", "os.fork alone"
WANTED_ALONE, WANTED_THROUGH, WANTED_START, WANTED_64 = 100_000, 20_000, 0.3, 10.0
RANKS = 8


def router_rows(rounds: int) -> list[Series]:
    """Events per second, and seconds to start and end ranks; `rounds` samples each, parties in turns."""
    Cluster(2).run(_reduces, 1)  # the warm process starts
    rates: dict[tuple[str, str], list[float]] = {}
    measured: list[tuple[str, str, Callable[[], float]]] = [
        ("events, router alone", ROUTER, _router_alone),
        ("events, router alone", QUEUE, _queue_alone),
        (f"events, all-reduces of {RANKS} ranks", ROUTER, lambda: _through_processes(_reduces, 60)),
        (f"events, all-reduces of {RANKS} ranks", TRIPS, _round_trips),
        (f"events, isend and irecv of {RANKS} ranks", ROUTER, lambda: _through_processes(_passes, 120)),
        (f"events, isend and irecv of {RANKS} ranks", TRIPS, _round_trips),
        (f"start and end of {RANKS} ranks", ROUTER, lambda: _seconds(lambda: Cluster(RANKS).run(_reduces, 0))),
        (f"start and end of {RANKS} ranks", FORKS, lambda: _seconds(_forks)),
    ]
    for _ in range(rounds):
        for what, by, measure in measured:
            rates.setdefault((what, by), []).append(measure())
    return [
        Series(what, by, "s", tuple(samples), peer=by != ROUTER)
        if what.startswith("start")
        else Series(what, by, "1/s", tuple(samples), "higher", peer=by != ROUTER)
        for (what, by), samples in rates.items()
    ]


def router_facts(rows: list[Series], runs: int) -> dict[str, Any]:
    """Whether the aims are reached, `runs` of one program that all give the same, and 64 ranks in one cell."""
    seen = set()
    for _ in range(runs):
        run = Cluster(fabric(2, 2)).run(_reduces, 3)
        seen.add((run.clocks, repr(run.messages), run.spans))
    ours = {row.what: row.median for row in rows if not row.peer}
    sixty_four = _seconds(lambda: Cluster(64).run(_reduces, 2))
    return {
        "runs": runs,
        "different": len(seen),
        "seconds_of_64_ranks": sixty_four,
        "alone_enough": ours["events, router alone"] >= WANTED_ALONE,
        "through_enough": ours[f"events, all-reduces of {RANKS} ranks"] >= WANTED_THROUGH,
        "messages_enough": ours[f"events, isend and irecv of {RANKS} ranks"] >= WANTED_THROUGH,
        "start_enough": ours[f"start and end of {RANKS} ranks"] <= WANTED_START,
        "sixty_four_enough": sixty_four <= WANTED_64,
    }


def _reduces(times: int) -> float:
    """Real seconds for so many all-reduces of 256 bytes."""
    x = torch.ones(64)
    return _seconds(lambda: [dist.all_reduce(x) for _ in range(times)])


def _passes(times: int) -> float:
    """Real seconds for so many messages from each rank to the next."""
    rank, size, x, into = dist.get_rank(), dist.get_world_size(), torch.ones(64), torch.empty(64)

    def run() -> None:
        for _ in range(times):
            for handle in (dist.isend(x, (rank + 1) % size), dist.irecv(into, (rank - 1) % size)):
                handle.wait()

    return _seconds(run)


def _through_processes(program: Callable[[int], float], times: int) -> float:
    """Events per second, the start of the ranks aside."""
    run = Cluster(RANKS).run(program, times)
    return run.events / max(run.results)


def _router_alone(steps: int = 400) -> float:
    """Events per second of a ring whose ranks live in this process."""

    def rank(me: int) -> Iterator[list[Call]]:
        at = 0.0
        for step in range(steps):
            send = Send(2 * step, (me + 1) % RANKS, "", 0, 256, at)
            receive = Receive(2 * step + 1, (me - 1) % RANKS, "", 0, 256, at)
            at = yield [send, receive, Wait((2 * step, 2 * step + 1), at)]
        yield [End(at)]

    running = [rank(me) for me in range(RANKS)]

    def step(batch: list[tuple[Actor, float, Resumption]]) -> Iterator[list[Call]]:
        for actor, at, resumption in batch:
            yield running[actor.rank].send(at if resumption.handles else None)

    router = Router(uniform(RANKS))
    seconds = _seconds(lambda: router.run(step))
    return router.events / seconds


def _queue_alone(events: int = 20_000) -> float:
    queue = [(float(i), i) for i in range(RANKS)]

    def run() -> None:
        for number in range(events):
            at, _ = heapq.heappop(queue)
            heapq.heappush(queue, (at + 1.0, number))

    return events / _seconds(run)


def _round_trips(times: int = 3000) -> float:
    """Messages there and back between two processes on one core: no rank can go on more often."""
    ours, theirs = socket.socketpair()
    before = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    if before:
        os.sched_setaffinity(0, {min(before)})
    child = os.fork()
    if child == 0:
        ours.close()
        while data := theirs.recv(1024):
            theirs.sendall(data)
        os._exit(0)
    theirs.close()

    def run() -> None:
        for _ in range(times):
            ours.sendall(bytes(256))
            ours.recv(1024)

    seconds = _seconds(run)
    ours.close()
    os.waitpid(child, 0)
    if before:
        os.sched_setaffinity(0, before)
    return times / seconds


def _forks() -> None:
    for _ in range(RANKS):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)


def _seconds(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
