"""What the meter found out: the traffic of one launch, and of several together."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from threeloops.inner.bench.meter.findings import Finding
from threeloops.inner.bench.meter.flops import KINDS
from threeloops.inner.costs import Work


@dataclass(frozen=True)
class ArgumentTraffic:
    """Bytes moved through one argument. Unique: the union over a launch."""

    requested_loaded: int = 0
    requested_stored: int = 0
    unique_loaded: int = 0
    unique_stored: int = 0

    def __add__(self, other: "ArgumentTraffic") -> "ArgumentTraffic":
        return ArgumentTraffic(
            self.requested_loaded + other.requested_loaded,
            self.requested_stored + other.requested_stored,
            self.unique_loaded + other.unique_loaded,
            self.unique_stored + other.unique_stored,
        )


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Counts of one launch or of several.

    Requested bytes are what active lanes asked for. Unique bytes are the union of them over a launch, loaded and stored
    apart: what a cache that never evicts within a launch would exchange with memory. `dram_bytes` is what the L2 model
    exchanges with memory, None without a model. An atomic operation reads and writes its bytes. Sectors are 32 bytes, a
    request is 32 lanes of an access that follow one another along its contiguous axis. `flops` by kind, see `flops`.

    `largest_tile` is the number of elements of the largest tile that a program loads or computes; `most_held` that of
    all tiles that one program holds at one time, including its pointers, masks and intermediate results, until
    Python drops them. Of several launches these are the largest, not the sum.
    """

    requested_loaded: int = 0
    requested_stored: int = 0
    unique_loaded: int = 0
    unique_stored: int = 0
    dram_loaded: int | None = None
    dram_stored: int | None = None
    sectors: int = 0
    requests: int = 0
    atomics: int = 0
    programs: int = 0
    largest_tile: int = 0
    most_held: int = 0
    flops: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    arguments: dict[str, ArgumentTraffic] = field(default_factory=dict)

    @property
    def requested_bytes(self) -> int:
        return self.requested_loaded + self.requested_stored

    @property
    def unique_bytes(self) -> int:
        return self.unique_loaded + self.unique_stored

    @property
    def dram_bytes(self) -> int | None:
        if self.dram_loaded is None or self.dram_stored is None:
            return None
        return self.dram_loaded + self.dram_stored

    @property
    def sectors_per_request(self) -> float:
        """4 for a coalesced float32 access, 2 for fp16, 32 for a stride of 32 bytes and more; 0 without requests."""
        return self.sectors / self.requests if self.requests else 0.0

    @property
    def dot_flops(self) -> float:
        return self.flops["dot"]

    @property
    def total_flops(self) -> float:
        return sum(self.flops.values())

    @property
    def work(self) -> Work:
        """The traffic as a roofline takes it: modelled DRAM bytes, those of the L2 model where there is one."""
        return Work(self.unique_bytes if self.dram_bytes is None else self.dram_bytes, self.total_flops)


@dataclass(frozen=True, kw_only=True)
class LaunchTraffic(Traffic):
    """One launch: `name` of the kernel, grid, where the kernel is defined, and what is wrong with it."""

    name: str
    grid: tuple[int, int, int]
    file: str = ""
    line: int = 0
    findings: tuple[Finding, ...] = ()


def together(launches: Sequence[Traffic]) -> Traffic:
    """The sum. Arguments of one name are added up; so are unique bytes, since memory may be read again by each
    launch."""
    arguments: dict[str, ArgumentTraffic] = {}
    for launch in launches:
        for name, argument in launch.arguments.items():
            arguments[name] = arguments.get(name, ArgumentTraffic()) + argument

    def total(quantity: str) -> int:
        return sum(getattr(launch, quantity) for launch in launches)

    modelled = bool(launches) and all(launch.dram_bytes is not None for launch in launches)
    return Traffic(
        requested_loaded=total("requested_loaded"),
        requested_stored=total("requested_stored"),
        unique_loaded=total("unique_loaded"),
        unique_stored=total("unique_stored"),
        sectors=total("sectors"),
        requests=total("requests"),
        atomics=total("atomics"),
        programs=total("programs"),
        largest_tile=max((launch.largest_tile for launch in launches), default=0),
        most_held=max((launch.most_held for launch in launches), default=0),
        dram_loaded=total("dram_loaded") if modelled else None,
        dram_stored=total("dram_stored") if modelled else None,
        flops={kind: sum(launch.flops[kind] for launch in launches) for kind in KINDS},
        arguments=arguments,
    )
