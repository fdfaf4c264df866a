"""Topologies as data: the ports between any two ranks, their bandwidths, and the latencies.

A port sends one message at a time. It is a direction of a link, a NIC, or the uplink of a switch. Ranks that share a
port share its bandwidth. Bandwidths are bytes/s per direction, and latencies are seconds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from threeloops.hardware.accelerators import accelerator

__all__ = ["Port", "Route", "Topology", "fabric", "one_node", "pcie_only", "read_topology", "uniform"]

_MOST_RANKS = 128
"""Each rank is a process of this machine."""

_NVLINK_LATENCY = 3.4e-6
_PCIE_LATENCY = 5.7e-6
_NETWORK_LATENCY = 14e-6
"""The latencies that NCCL 2.28 assumes per step of a ring, protocol Simple (src/graph/tuning.cc: hwLatencies)."""
_NDR_BANDWIDTH = 50e9
"""One port of 400 Gbit/s InfiniBand (NDR)."""


@dataclass(frozen=True)
class Port:
    name: str
    bandwidth: float

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise ValueError(f"port {self.name}: bandwidth = {self.bandwidth} bytes/s, expected more than 0")


@dataclass(frozen=True)
class Route:
    """A message occupies all `ports` (indices) at once, at the bandwidth of the slowest; it arrives `latency` seconds
    after its last byte has left."""

    ports: tuple[int, ...]
    latency: float

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.ports):
            raise ValueError(f"latency = {self.latency} s through {len(self.ports)} ports: expected ≥ 0, and one port")


@dataclass(frozen=True)
class Topology:
    """`routes` holds one for each ordered pair of different ranks; `nodes` says in which node each rank is."""

    name: str
    nodes: tuple[int, ...]
    ports: tuple[Port, ...]
    routes: Mapping[tuple[int, int], Route] = field(repr=False)

    def __post_init__(self) -> None:
        pairs = {(a, b) for a in range(self.ranks) for b in range(self.ranks) if a != b}
        if missing := pairs - self.routes.keys():
            raise ValueError(f"{self.name}: there is no route from rank {min(missing)[0]} to rank {min(missing)[1]}")

    @property
    def ranks(self) -> int:
        return len(self.nodes)

    def bandwidth(self, source: int, target: int) -> float:
        """Bytes/s of a message that has the route for itself."""
        return min(self.ports[port].bandwidth for port in self.routes[source, target].ports)

    def seconds(self, source: int, target: int, size: int) -> float:
        """Return how long `size` bytes take from rank to rank if nothing else is on the way."""
        return self.routes[source, target].latency + size / self.bandwidth(source, target)


class _Builder:
    """Ports by name, so that routes that name the same one share it."""

    def __init__(self) -> None:
        self.ports: list[Port] = []
        self.routes: dict[tuple[int, int], Route] = {}
        self._index: dict[str, int] = {}

    def port(self, name: str, bandwidth: float) -> int:
        if name not in self._index:
            self._index[name] = len(self.ports)
            self.ports.append(Port(name, bandwidth))
        return self._index[name]


def uniform(ranks: int, latency: float = 10e-6, bandwidth: float = 1e9) -> Topology:
    """A link of its own from each rank to each other one: the α–β model (latency, bandwidth) without contention."""
    _count("ranks", ranks)
    made = _Builder()
    for a, b in _pairs(ranks):
        made.routes[a, b] = Route((made.port(f"{a}→{b}", bandwidth),), latency)
    name = f"{ranks} rank{'s' * (ranks > 1)}, {1e6 * latency:g} µs and {bandwidth / 1e9:g} GB/s from each to each"
    return Topology(name, (0,) * ranks, tuple(made.ports), made.routes)


def one_node(device: str = "H100 SXM", ranks: int = 8, latency: float = _NVLINK_LATENCY) -> Topology:
    """Devices behind NVLink switches: each has one port out and one in, at the link rate of the hardware table."""
    return fabric(1, ranks, device, link_latency=latency)


def pcie_only(device: str = "L40S", ranks: int = 8, per_switch: int = 4, latency: float = _PCIE_LATENCY) -> Topology:
    """Devices without links of their own: below one PCIe switch each has its own lanes, between switches all share the
    lanes of one link to the host."""
    _count("ranks", ranks)
    _count("per_switch", per_switch)
    rate = accelerator(device).host_link_bandwidth
    if rate is None:
        raise ValueError(f"{device}: the hardware table has no bandwidth of its host link")
    made = _Builder()
    for a, b in _pairs(ranks):
        between = [made.port(f"out {a}", rate), made.port(f"in {b}", rate)]
        if a // per_switch != b // per_switch:
            between += [made.port(f"up {a // per_switch}", rate), made.port(f"down {b // per_switch}", rate)]
        made.routes[a, b] = Route(tuple(between), latency)
    return Topology(f"{ranks} × {device}, PCIe", (0,) * ranks, tuple(made.ports), made.routes)


def fabric(
    nodes: int,
    per_node: int = 8,
    device: str = "H100 SXM",
    *,
    nics: int | None = None,
    nic_bandwidth: float = _NDR_BANDWIDTH,
    nodes_per_leaf: int | None = None,
    oversubscription: float = 1.0,
    link_latency: float = _NVLINK_LATENCY,
    network_latency: float = _NETWORK_LATENCY,
) -> Topology:
    """Nodes of NVLink devices, joined by a network.

    Args:
        nics: NICs per node, shared evenly by its devices. By default each device has one, as in rail-optimised
            networks. 1 is a NIC that all devices of the node share.
        nodes_per_leaf: if given, the network is a tree of leaf and spine switches. Messages between leaves share the
            leaf's uplink, whose bandwidth is that of all NICs below it divided by `oversubscription` (1.0: a full fat
            tree). Otherwise the network is one switch.
    """
    _count("nodes", nodes)
    _count("per_node", per_node)
    ranks = nodes * per_node
    nics = per_node if nics is None else nics
    _count("ranks", ranks)
    if not 1 <= nics <= per_node or per_node % nics:
        raise ValueError(f"nics = {nics} for {per_node} devices: expected a number that divides them")
    rate = accelerator(device).link_bandwidth
    if rate is None:
        raise ValueError(f"{device}: the hardware table has no bandwidth of links between devices; try pcie_only()")
    uplink = nic_bandwidth * nics * (nodes_per_leaf or 1) / oversubscription
    made = _Builder()
    for a, b in _pairs(ranks):
        out = made.port(f"out {a}", rate)
        into = made.port(f"in {b}", rate)
        (node_a, device_a), (node_b, device_b) = divmod(a, per_node), divmod(b, per_node)
        if node_a == node_b:
            made.routes[a, b] = Route((out, into), link_latency)
            continue
        between = [
            made.port(f"NIC out {node_a}.{device_a * nics // per_node}", nic_bandwidth),
            made.port(f"NIC in {node_b}.{device_b * nics // per_node}", nic_bandwidth),
        ]
        if nodes_per_leaf and node_a // nodes_per_leaf != node_b // nodes_per_leaf:
            between += [
                made.port(f"up {node_a // nodes_per_leaf}", uplink),
                made.port(f"down {node_b // nodes_per_leaf}", uplink),
            ]
        made.routes[a, b] = Route(tuple(between), network_latency)
    name = f"{nodes} × {per_node} × {device}" if nodes > 1 else f"{per_node} × {device}"
    return Topology(name, tuple(rank // per_node for rank in range(ranks)), tuple(made.ports), made.routes)


def read_topology(text: str, ranks: int | None = None) -> Topology:
    """A topology by the name that it has in charts: "8 × H100 SXM" (one node), "2 × 8 × H100 SXM" (nodes, ranks per
    node), "8 × L40S, PCIe", or "8 ranks" (`uniform`). "x" stands for "×".

    Args:
        ranks: how many it must have, if the caller knows.

    Raises:
        ValueError: no such topology, or another number of ranks.
        LookupError: no such device.
    """
    words = [word.strip() for word in re.split(r"\s+[x×]\s+", text.strip())]
    device, _, bus = words[-1].partition(",")
    counts = [int(word) for word in words[:-1] if word.isdecimal()]
    if match := re.fullmatch(r"(\d+) ranks?", text.strip()):
        topology = uniform(int(match[1]))
    elif len(counts) != len(words) - 1 or len(counts) not in (1, 2) or bus.strip().lower() not in ("", "pcie"):
        raise ValueError(
            f"topology {text!r}: expected for example '8 ranks', '8 x H100 SXM', '2 x 8 x H100 SXM' (nodes x ranks per "
            "node) or '8 x L40S, PCIe'"
        )
    elif bus and len(counts) == 1:
        topology = pcie_only(device, counts[0])
    elif bus:
        raise ValueError(f"topology {text!r}: devices on PCIe are in one node here; leave out the number of nodes")
    else:
        topology = fabric(1 if len(counts) == 1 else counts[0], counts[-1], device)
    if ranks not in (None, topology.ranks):
        raise ValueError(f"topology {text!r} has {topology.ranks} ranks, and {ranks} were asked for")
    return topology


def _pairs(ranks: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(ranks) for b in range(ranks) if a != b]


def _count(what: str, number: int) -> None:
    if not 1 <= number <= _MOST_RANKS:
        raise ValueError(
            f"{what} = {number}: expected 1 to {_MOST_RANKS}; every rank is a process here, so plan larger clusters "
            "with a model of them"
        )
