"""Run a student's function on the ranks of a virtual cluster, from a test.

Not a name of `threeloops.lab`, which imports no torch: a lab that needs it imports it from here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

from threeloops.lab.checking import wall
from threeloops.training.cluster import Cluster, ClusterError, RankFailed, Run, SlowRank

__all__ = ["on_cluster"]

_HUB = "threeloops.training.cluster.processes.hub"


def on_cluster(
    cluster: Cluster,
    program: Callable[..., Any],
    *arguments: Any,
    seconds: float = 60.0,
    memory: bool = False,
    served: Mapping[str, Callable[..., Any]] | None = None,
) -> Run:
    """Run `cluster.run(program, *arguments)`, behind the wall with clocks that the student's code cannot reach.

    Behind the wall, the ranks run in the sandbox, and every message passes through the grader. Its router records the
    bytes, messages and times of the run, and the monitor of the sandbox records the memory. Results cross as plain
    data. In a notebook, the output of the ranks is printed.

    Args:
        program: the student's function, or one of the library or of a setup cell, which gets the student's function as
            an argument. A function of a test cell exists on the grader's side only.
        seconds: of real time, for the whole run.
        memory: measure the memory of each rank, as `Cluster.run` does.
        served: functions of the test, which ranks call with `ask(name, …)`. They run on the grader's side and get the
            rank first. So the test knows what each rank was given, and no other data reaches the sandbox. The functions
            must accept any arguments. The ranks of a submission share a sandbox, so a hostile rank could pass its part
            on without the router, for example in a file.

    Raises:
        TypeError: `program` is a function of a test cell.
        NotImplementedError: a rank raised this error without a message, as an unwritten exercise does.
        RankFailed, Deadlock, Mismatch, Unfinished: see `Cluster.run`.
    """
    try:
        return _run(cluster, program, arguments, seconds, memory, served)
    except RankFailed as failure:
        if "NotImplementedError" in str(failure).splitlines():
            raise NotImplementedError from None
        raise


def _run(
    cluster: Cluster,
    program: Callable[..., Any],
    arguments: tuple[Any, ...],
    seconds: float,
    memory: bool,
    served: Mapping[str, Callable[..., Any]] | None,
) -> Run:
    if wall.connection is None:
        try:
            run = cluster.run(program, *arguments, seconds=seconds, memory=memory, served=served)
        except ClusterError as error:
            for note in getattr(error, "__notes__", ()):
                print(note)
            raise
        if run.printed:
            print(run.printed)
        return run
    for each in (program, *arguments):
        if type(each) is FunctionType and each.__module__ == "__main__" and not wall.connection.is_of_setup(each):
            raise TypeError(
                f"{each.__name__} is a function of a test cell: define it in a setup cell to run it on ranks"
            )
    slow = [fault for fault in cluster.faults if isinstance(fault, SlowRank)]
    try:
        _call("start", cluster.topology.nodes, program, arguments, slow, seconds, memory)
        return cluster.conduct(
            _Hub(cluster.topology.ranks),
            lambda rank, _: _call("result", rank),
            lambda: str(_call("printed")),
            memory,
            served,
        )
    except ClusterError as error:
        wall.connection.note_words(error)  # ranks may say in it what hidden tests hold
        raise
    finally:
        _call("end")


class _Hub:
    """The ranks in the sandbox, through the wall, and what the monitor sees of them from beside it."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def measure_memory(self) -> None:
        """Raises RuntimeError where there are other processes than the ranks, or one has grown already."""
        found = wall.connection.measure_memory()
        if found < 0:
            raise RuntimeError("a rank ended, or allocated memory, before its memory was measured")
        if found != self._ranks:
            raise RuntimeError(f"{found} processes run beside the student's own, where the cluster has {self._ranks}")

    def memory(self) -> list[int]:
        """Raises RuntimeError where a rank has ended by itself, or started another process."""
        found = wall.connection.memory()
        if found is None:
            raise RuntimeError("a rank ended, or started another process, while its memory was measured")
        return list(found)

    def exchange(self, told: list[tuple[int, Sequence[Any]]]) -> Iterator[tuple[Any, memoryview]]:
        if told:
            heard = _call("exchange", [(rank, b"".join(parts)) for rank, parts in told])
            yield from ((said, memoryview(data)) for said, data in _checked(heard, len(told)))


def _checked(heard: Any, count: int) -> list[Any]:
    """Check that an answer, which the student's process could forge, has a pair of bytes for each rank."""
    good = type(heard) is list and len(heard) == count
    if not good or any(type(each) is not tuple or [type(part) for part in each] != [bytes, bytes] for each in heard):
        raise RuntimeError("the ranks of this submission gave a malformed answer")
    return heard


def _call(name: str, *arguments: Any) -> Any:
    return wall.connection.call_library((_HUB, name), arguments, {})
