"""The ports of a cluster, which decide when a ready message begins to leave and when it has left."""

import math
from collections.abc import Sequence

from threeloops.training.cluster.machine.faults import SlowLink
from threeloops.training.cluster.machine.topology import Topology

__all__ = ["Ports"]


class Ports:
    """Each serves one message at a time, in the order in which they are taken."""

    def __init__(self, topology: Topology, slow: Sequence[SlowLink]) -> None:
        self._topology = topology
        self._slow = slow
        self._free = [0.0] * len(topology.ports)
        self._bandwidths: dict[tuple[int, int], float] = {}

    def take(self, pair: tuple[int, int], size: int, ready: float) -> tuple[float, float]:
        """Occupy every port between two ranks as soon as all are free. Returns when this begins and when it ends."""
        ports = self._topology.routes[pair].ports
        free = self._free
        start = ready
        for port in ports:
            if free[port] > start:
                start = free[port]
        until = start + size / (self._slowed(ports, start) if self._slow else self._usual(pair))
        for port in ports:
            free[port] = until
        return start, until

    def _usual(self, pair: tuple[int, int]) -> float:
        if pair not in self._bandwidths:
            self._bandwidths[pair] = self._topology.bandwidth(*pair)
        return self._bandwidths[pair]

    def _slowed(self, ports: Sequence[int], at: float) -> float:
        """Bytes/s of the slowest of these ports at that time."""
        bandwidths = []
        for port in ports:
            name = self._topology.ports[port].name
            bandwidth = self._topology.ports[port].bandwidth
            bandwidths.append(
                bandwidth * math.prod(f.factor for f in self._slow if f.port == name and f.at <= at < f.until)
            )
        return min(bandwidths)
