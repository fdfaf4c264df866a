"""A cluster that runs a program: one process per rank, connected only by the router."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from threeloops.training.cluster.machine.calls import COMMUNICATION
from threeloops.training.cluster.machine.errors import ClusterError
from threeloops.training.cluster.machine.faults import Fault, SlowRank, check_faults
from threeloops.training.cluster.machine.records import Actor, Message, Span
from threeloops.training.cluster.machine.router import Router
from threeloops.training.cluster.machine.topology import Topology, uniform
from threeloops.training.cluster.processes.fresh import fresh_ranks
from threeloops.training.cluster.processes.launcher import launcher
from threeloops.training.cluster.processes.pickled import to_bytes
from threeloops.training.cluster.processes.ranks import Ranks, Served, Sockets, Transport, one_core

__all__ = ["Cluster", "Run"]


@dataclass(frozen=True)
class Run:
    """The result of a program's run. Times are virtual seconds."""

    topology: Topology
    results: tuple[Any, ...]
    """The value that the program returned on each rank, or None if the rank died."""
    clocks: tuple[float, ...]
    """The time at which each rank returned or died."""
    messages: tuple[Message, ...] = field(repr=False)
    spans: tuple[Span, ...] = field(repr=False)
    events: int
    printed: str = ""
    died: dict[int, float] = field(default_factory=dict)
    memory: tuple[int, ...] = ()
    """The most bytes that each rank took beyond those it started with, or empty if memory was not measured."""

    @property
    def seconds(self) -> float:
        """The time at which the last rank returned."""
        return max(self.clocks)

    @property
    def collectives(self) -> list[Span]:
        """The collectives that ranks took part in, by the names that the router knows them by."""
        return [span for span in self.spans if span.timeline == COMMUNICATION]

    @property
    def bytes(self) -> list[list[int]]:
        """Bytes sent from each rank (row) to each other (column)."""
        sent = [[0] * self.topology.ranks for _ in range(self.topology.ranks)]
        for message in self.messages:
            sent[message.source][message.target] += message.size
        return sent


class Cluster:
    """A cluster of ranks on a topology, or a number of ranks with one link for each pair (10 µs, 1 GB/s).

    Args:
        faults: what fails, and when.
        timeout: virtual seconds for which a rank waits for one that has died.
        fresh: start an interpreter for each rank, with its own hash seed, as on separate machines. The order of a set
            of strings then differs from rank to rank. This takes a few seconds more. By default ranks are forks of one
            process, and only the addresses of their objects differ.
    """

    def __init__(
        self, topology: Topology | int, faults: Sequence[Fault] = (), timeout: float = 600.0, *, fresh: bool = False
    ) -> None:
        self.topology = uniform(topology) if isinstance(topology, int) else topology
        self.faults = tuple(faults)
        self.timeout = timeout
        self.fresh = fresh
        check_faults(faults, self.topology)

    def run(
        self,
        program: Callable[..., Any],
        *arguments: Any,
        seconds: float = 120.0,
        memory: bool = False,
        served: Served | None = None,
    ) -> Run:
        """Run `program(*arguments)` on every rank, each in a process of its own, for at most `seconds` of real time.

        With `memory`, the largest memory of each rank is measured, as `threeloops.resident` describes. A rank's
        arguments belong to the memory that it starts with.

        `served` has functions that ranks call with `ask(name, …)`. They run in this process, and get the rank first.

        Functions of a notebook and of the program's own module are sent to the ranks with everything that they use, in
        its current state.

        Raises:
            RankFailed: a rank raised an exception, or its process died. The message has its traceback.
            Deadlock, Mismatch, Unfinished: see there. All processes are gone when this returns or raises. A note of the
                exception has what the ranks printed.
        """
        with self._ranks(to_bytes(program, arguments, self.label(memory)), seconds) as sockets:
            try:
                return self.conduct(sockets, lambda _, data: cloudpickle.loads(data), sockets.printed, memory, served)
            except ClusterError as error:
                if printed := sockets.printed():
                    error.add_note(printed)
                raise

    @contextlib.contextmanager
    def _ranks(self, pickled: bytes, seconds: float) -> Iterator[Sockets]:
        if self.fresh:  # they start on all cores
            with fresh_ranks(self.topology.ranks, pickled, seconds) as sockets, one_core():
                yield sockets
        else:
            with one_core() as core, launcher.ranks(self.topology.ranks, pickled, core, seconds) as sockets:
                yield sockets

    def label(self, memory: bool) -> tuple[Any, ...]:
        """Return the label of a run for `to_bytes`: what its ranks have to know besides the program."""
        slow = [fault for fault in self.faults if isinstance(fault, SlowRank)]
        return self.topology.nodes, slow, memory

    def conduct(
        self,
        transport: Transport,
        load: Callable[[int, memoryview], Any],
        printed: Callable[[], str],
        memory: bool = False,
        served: Served | None = None,
    ) -> Run:
        """Route a run whose ranks are reached through `transport`; `load` gives a rank's result."""
        router = Router(self.topology, self.faults, self.timeout)
        ranks = Ranks(transport, memory, served)
        try:
            router.run(ranks.step)
        except ClusterError:
            ranks.raise_failure()
            raise
        ranks.raise_failure()
        size = range(self.topology.ranks)
        return Run(
            self.topology,
            tuple(load(rank, ranks.results[rank]) if rank in ranks.results else None for rank in size),
            tuple(router.clock[Actor(rank)] for rank in size),
            tuple(router.messages),
            tuple(router.spans),
            router.events,
            printed(),
            dict(router.died),
            tuple(transport.memory()) if memory else (),
        )
