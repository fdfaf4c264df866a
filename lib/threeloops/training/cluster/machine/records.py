"""The router's records of a run: actors, messages, and spans of their timelines."""

from dataclasses import dataclass
from typing import NamedTuple

from threeloops.training.cluster.machine.calls import COMMUNICATION, COMPUTE

__all__ = ["Actor", "Message", "Resumption", "Span"]


class Actor(NamedTuple):
    rank: int
    timeline: int = COMPUTE

    def __str__(self) -> str:
        return f"rank {self.rank}" + ("'s communication" if self.timeline == COMMUNICATION else "")


@dataclass(slots=True)
class Message:
    """One message: asked for at `ready`, on its way from `start`, all sent at `left`, there at `arrived`."""

    source: int
    target: int
    size: int
    channel: str
    tag: int
    ready: float
    start: float
    left: float
    arrived: float
    timeline: int = COMPUTE
    """The timeline of the sender and the receiver."""
    handle: int = 0
    """The sender's number for it."""
    where: str = ""
    received: bool = False
    corrupted: bool = False


class Span(NamedTuple):
    """A stretch of a rank's timeline: computation that was charged, or a job."""

    rank: int
    timeline: int
    start: float
    end: float
    what: str


class Resumption(NamedTuple):
    """The reason why an actor continues: the messages that it waited for, in the order of its `handles`. `number` is
    the handle of the job that it begins, or of the ended job whose values it gets. With `error`, the awaited thing has
    failed. `finished` lists sends that the actor no longer needs to wait for, and when they left."""

    handles: tuple[int, ...] = ()
    messages: tuple[Message | None, ...] = ()
    number: float = 0.0
    error: str = ""
    finished: tuple[tuple[int, float], ...] = ()
