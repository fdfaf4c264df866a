"""One fault of a launch, as the meter reports it."""

from dataclasses import dataclass
from typing import Literal

from threeloops.places import source_name

__all__ = ["Finding", "FindingKind", "Incident", "Incidents", "amount", "program_coordinates"]

FindingKind = Literal[
    "out-of-bounds", "outside-view", "uninitialised-read", "undefined-lane", "failed-assert", "store-conflict",
    "write-race", "read-write-race", "accumulation", "false-hint", "undefined-arithmetic",
]  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One fault, reported once per source line and argument.

    `launch` is the name of the kernel, with its configuration if all are metered. `program` is (x, y, z) of the first
    program at fault. `file` and `line` are the source line in the kernel. `message` says what happened, where, how
    often, and what to do.
    """

    kind: FindingKind
    launch: str
    program: tuple[int, int, int]
    file: str
    line: int
    argument: str
    message: str

    def __str__(self) -> str:
        place = f"{source_name(self.file)}:{self.line}" if self.file else "source unknown"
        return f"{self.kind} in {self.launch}, program {self.program}, {place}: {self.message}"


@dataclass
class Incident:
    """All faults of one kind at one source line and argument: the one seen `first`, and the extent of all."""

    kind: FindingKind
    argument: str
    site: int
    program: int
    first: str
    advice: str
    unit: str
    amount: int
    programs: set[int]

    @property
    def message(self) -> str:
        in_all = f"{amount(self.amount, self.unit)} in {amount(len(self.programs), 'program')}"
        return f"{self.first}; {in_all}; {self.advice}"


class Incidents:
    """The faults of one launch, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int], Incident] = {}

    def add(self, new: Incident) -> None:
        """Add to the incident of the same kind, argument and line, which keeps its words."""
        incident = self._seen.setdefault((new.kind, new.argument, new.site), new)
        if incident is not new:
            incident.amount += new.amount
            incident.programs |= new.programs

    def findings(self, launch: str, grid: tuple[int, int, int], sites: list[tuple[str, int]]) -> tuple[Finding, ...]:
        return tuple(
            Finding(
                incident.kind,
                launch,
                program_coordinates(incident.program, grid),
                *sites[incident.site],
                incident.argument,
                incident.message,
            )
            for incident in self._seen.values()
        )


def amount(number: int, unit: str) -> str:
    """Format an amount: (1, "lane") → "1 lane"; (24, "lane") → "24 lanes"."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def program_coordinates(program: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return (x, y, z) of a program, from its number in the interpreter's order, in which z runs fastest."""
    rest, z = divmod(program, grid[2])
    x, y = divmod(rest, grid[1])
    return x, y, z
