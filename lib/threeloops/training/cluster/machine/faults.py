"""Faults that happen at a virtual time, as data. Times are seconds."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from threeloops.training.cluster.machine.topology import Topology

__all__ = ["CorruptMessage", "Fault", "RankDies", "SlowLink", "SlowRank", "check_faults", "corrupt"]


@dataclass(frozen=True)
class RankDies:
    """Rank `rank` stops at `at`: messages that have not left by then are lost. A rank that waits for it gets a
    `RankLost` when the run's `timeout` is over."""

    rank: int
    at: float


@dataclass(frozen=True)
class SlowRank:
    """Computation of rank `rank` that begins from `at` to `until` takes `factor` times as long."""

    rank: int
    factor: float
    at: float = 0.0
    until: float = math.inf


@dataclass(frozen=True)
class SlowLink:
    """The bandwidth of `port` (its name in the topology) is multiplied by `factor` for messages that start from `at` to
    `until`."""

    port: str
    factor: float
    at: float = 0.0
    until: float = math.inf


@dataclass(frozen=True)
class CorruptMessage:
    """One bit of message `number` (from 0) from rank `source` to rank `target` is flipped: bit 6 of the last byte, high
    in the exponent of a little-endian float."""

    source: int
    target: int
    number: int = 0


def corrupt(data: memoryview) -> None:
    """Flip the bit that `CorruptMessage` names, in place; an empty message has none."""
    if data:
        data[-1] ^= 1 << 6


Fault = RankDies | SlowRank | SlowLink | CorruptMessage


def check_faults(faults: Iterable[Fault], topology: Topology) -> None:
    """Raises ValueError for a fault that cannot happen on this topology."""
    names = {port.name for port in topology.ports}
    for fault in faults:
        ranks = {name: getattr(fault, name) for name in ("rank", "source", "target") if hasattr(fault, name)}
        for name, rank in ranks.items():
            if not 0 <= rank < topology.ranks:
                raise ValueError(f"{fault}: {name} = {rank}, expected 0 to {topology.ranks - 1}")
        if isinstance(fault, SlowLink) and fault.port not in names:
            some = ", ".join(sorted(names)[:6])
            raise ValueError(f"{fault}: {topology.name} has no port {fault.port!r}; it has {some}, …")
        if not getattr(fault, "factor", 1.0) > 0:
            raise ValueError(f"{fault}: expected a factor above 0")
        if not getattr(fault, "at", 0.0) >= 0:
            raise ValueError(f"{fault}: expected a time of 0 s or later")
