"""Run a student's function on the ranks of a virtual cluster, from a test.

`threeloops.lab` does not import torch, and therefore not this module. A lab that needs it imports it from here.
"""

import math
import re
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from threeloops.lab.checking import wall
from threeloops.lab.checking.failure import Frame, of_lab
from threeloops.training.cluster import Cluster, ClusterError, RankFailed, Run

__all__ = ["on_cluster"]

_MEASUREMENTS = 3
_FRAME = re.compile(r"^  in (\S+), line (\d{1,9}): (.{0,300}).*\n", re.M)
"""A line of a cell in the traceback of a rank: see `threeloops.training.cluster.programs.child`."""
_UNWRITTEN = re.compile(r"rank \d+ failed: NotImplementedError( \(\d+ other ranks? failed too\))?")
_OTHERS = re.compile(r"\n(\(\d+ other ranks? failed too\))$")
_LINE = re.compile(r"\(([^\s(),]+), line (\d+)")
"""A line of a cell in the description of what a rank does: see `calling_line`."""
_TO_BYTES = ("threeloops.training.cluster.processes.pickled", "to_bytes")


def on_cluster(
    cluster: Cluster,
    program: Callable[..., Any],
    *arguments: Any,
    seconds: float = 60.0,
    memory: bool | float = False,
    served: Mapping[str, Callable[..., Any]] | None = None,
) -> Run:
    """Run `cluster.run(program, *arguments)`, behind the wall with clocks that the student's code cannot reach.

    Behind the wall, each rank runs in a sandbox of its own, and every message passes through the grader. Its router
    records the bytes, messages and times of the run, and the monitor of the sandboxes records the memory. Results cross
    as plain data. In a notebook, the output of the ranks is printed.

    Args:
        program: the student's function, or one of the library or of a setup cell, which gets the student's function as
            an argument. A function of a test cell exists on the grader's side only.
        seconds: of real time, for the whole run.
        memory: measure the memory of each rank, as `Cluster.run` does. If this is a number of bytes and a rank takes as
            many or more, run the program again, twice at most. When memory is short, the kernel evicts pages of
            libraries, and they count when they return.
        served: functions of the test, which ranks call with `ask(name, …)`. They run on the grader's side and get the
            rank first. So the test knows what each rank was given. No other data reaches the rank, except in messages.
            The functions must accept any arguments.

    Raises:
        TypeError: `program` is a function of a test cell.
        NotImplementedError: a rank raised this error without a message, as an unwritten exercise does.
        RankFailed, Deadlock, Mismatch, Unfinished: see `Cluster.run`.
    """
    limit, measured = (math.inf, memory) if isinstance(memory, bool) else (memory, True)
    try:
        for _ in range(_MEASUREMENTS):
            run = _run(cluster, program, arguments, seconds, measured, served)
            if max(run.memory, default=0) < limit:
                break
        return run
    except RankFailed as failure:
        if _UNWRITTEN.fullmatch(str(failure)):
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
    try:
        if wall.connection is None:
            run = cluster.run(program, *arguments, seconds=seconds, memory=memory, served=served)
            if run.printed:
                print(run.printed)
            return run
        return _run_behind_wall(cluster, program, arguments, seconds, memory, served)
    except ClusterError as error:
        for note in getattr(error, "__notes__", ()):
            print(note)
        _name_cells(error)
        if wall.connection is not None:
            wall.connection.note_words(error)  # ranks may say in it what hidden tests hold
        raise


def _run_behind_wall(
    cluster: Cluster,
    program: Callable[..., Any],
    arguments: tuple[Any, ...],
    seconds: float,
    memory: bool,
    served: Mapping[str, Callable[..., Any]] | None,
) -> Run:
    for value in (program, *arguments):
        if type(value) is FunctionType and value.__module__ == "__main__" and not wall.is_of_lab(value.__name__):
            raise TypeError(
                f"{value.__name__} is a function of a test cell: define it in a setup cell to run it on ranks"
            )
    program_bytes = _pickled(program, arguments, cluster.label(memory))
    with wall.connection.ranks(cluster.topology.ranks, program_bytes, seconds) as ranks:
        return cluster.conduct(ranks, lambda _, data: wall.connection.result(data), ranks.printed, memory, served)


def _name_cells(error: ClusterError) -> None:
    """Say of each line that the error names whether it stands in the reader's cell or belongs to the lab.

    The frames of a failed rank become `further_frames`, so that a card shows them below those of the test.
    """
    message = str(error)
    if isinstance(error, RankFailed):
        error.further_frames = [  # type: ignore[attr-defined]
            Frame(_place(name), int(line), text) for name, line, text in _FRAME.findall(message)
        ]
        message = _OTHERS.sub(r" \1", _FRAME.sub("", message).replace(" failed:\n", " failed: ", 1))
    error.args = (_LINE.sub(lambda line: f"({_place(line[1])}, line {line[2]}", message),)


def _place(name: str) -> str:
    """Return the cell of a line on a rank, by the name of its function."""
    return of_lab(name) if wall.is_of_lab(name.split(".")[0]) else "your cell"


def _pickled(*arguments: Any) -> bytes:
    """Have the student's process pickle the program, with its arguments and the label of the run."""
    pickled = wall.connection.call_library(_TO_BYTES, arguments, {})
    if type(pickled) is not bytes:
        raise RuntimeError("the student's process gave a malformed program for its ranks")
    return pickled
