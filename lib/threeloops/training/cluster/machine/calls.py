"""Messages from a rank to the router. They are plain data that also cross the wall, so their consistency is checked.

A rank has two actors with clocks of their own, like the streams of a GPU. `COMPUTE` runs the program, and
`COMMUNICATION` runs the jobs (collectives) that it submits, one after another. `at` is the actor's own time, in
seconds.
"""

from typing import Annotated

import msgspec

__all__ = [
    "COMMUNICATION",
    "COMPUTE",
    "MOST_SAID",
    "Ask",
    "Call",
    "Charge",
    "Collective",
    "End",
    "Finish",
    "Receive",
    "Send",
    "Submit",
    "Wait",
]

COMPUTE = 0
COMMUNICATION = 1
MOST_SAID = 20_000
"""Characters of an error."""

_Size = Annotated[int, msgspec.Meta(ge=0)]
_Word = Annotated[str, msgspec.Meta(max_length=400)]


class _Call(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    pass


class Send(_Call, frozen=True):
    """Send `size` bytes to rank `to`. `handle` is the sender's number for it; `channel` and `tag` must match the
    receiver's. The bytes themselves follow the calls of a batch, in order."""

    handle: int
    to: int
    channel: _Word
    tag: int
    size: _Size
    at: float
    where: _Word = ""


class Receive(_Call, frozen=True):
    """Be ready for a message from rank `source`."""

    handle: int
    source: int
    channel: _Word
    tag: int
    size: _Size
    at: float
    where: _Word = ""


class Charge(_Call, frozen=True):
    """The actor computed for `seconds`, from `at` on."""

    seconds: float
    at: float
    what: _Word = ""


class Collective(msgspec.Struct, frozen=True, array_like=True):
    """The action of a job, which all `ranks` of its group must take.

    All ranks agree on `count`: the elements of an all-reduce, or of a rank's part of an all-gather. `root` is counted
    within the group.
    """

    group: _Word
    ranks: tuple[int, ...]
    operation: _Word
    count: int = 0
    dtype: _Word = "uint8"
    reduction: _Word = "SUM"
    root: int = 0

    def __str__(self) -> str:
        words = f"{self.operation}" + (f" of {self.count:,} {self.dtype}" if self.count else "")
        if self.operation in ("all_reduce", "reduce", "reduce_scatter"):
            words += f", {self.reduction.lower()}"
        return words + (f", root {self.root}" if self.operation in ("broadcast", "reduce", "gather", "scatter") else "")


class Submit(_Call, frozen=True):
    """Give the rank's communication timeline a job. It begins when the earlier jobs are finished, but not before `at`.
    The `size` bytes of its input follow the calls of a batch. If the input or the result consists of one part per rank,
    `sends` or `gets` has the number of elements of each part."""

    handle: int
    at: float
    collective: Collective
    size: _Size
    sends: tuple[_Size, ...] = ()
    gets: tuple[_Size, ...] = ()
    where: _Word = ""


class Wait(_Call, frozen=True):
    """Stop until everything in `handles` has happened: sends have left, messages have arrived, jobs have finished. With
    `values`, the handles are those of jobs, and the actor stops until their values are there. This does not move its
    clock. The time is charged when the actor waits for the handle again."""

    handles: tuple[int, ...]
    at: float
    where: _Word = ""
    values: bool = False


class Ask(_Call, frozen=True):
    """Ask the other side for the result of the served function `name`. The `size` bytes of its arguments follow the
    calls of a batch. The answer comes when the rank resumes, and takes no time. The router never sees this call."""

    at: float
    name: _Word
    size: _Size


class Finish(_Call, frozen=True):
    """The communication actor finished its job, or gave it up with `error`."""

    at: float
    error: Annotated[str, msgspec.Meta(max_length=MOST_SAID)] = ""


class End(_Call, frozen=True):
    """The program returned a result, or failed with `error`. Nothing follows. `forgot` is the line of a message that
    the program sent and did not wait for, or None."""

    at: float
    error: Annotated[str, msgspec.Meta(max_length=MOST_SAID)] = ""
    forgot: Annotated[str, msgspec.Meta(max_length=MOST_SAID)] | None = None


Call = Send | Receive | Charge | Submit | Wait | Ask | Finish | End
