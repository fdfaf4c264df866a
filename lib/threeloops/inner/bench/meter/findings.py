"""What is wrong with a launch: accesses outside an argument, reads of memory that nothing wrote, races between
programs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

FindingKind = Literal["out-of-bounds", "uninitialised-read", "write-race", "read-write-race"]


@dataclass(frozen=True)
class Finding:
    """One fault, reported once for its source line and argument.

    `launch`: name of the kernel. `program`: (x, y, z) of the first program that did it. `file` and `line`: the kernel's
    source line. `message` says what, where, how often, and what to do.
    """

    kind: FindingKind
    launch: str
    program: tuple[int, int, int]
    file: str
    line: int
    argument: str
    message: str

    def __str__(self) -> str:
        place = f"{base_name(self.file)}:{self.line}" if self.file else "source unknown"
        return f"{self.kind} in {self.launch}, program {self.program}, {place}: {self.message}"


@dataclass
class Incident:
    """The same fault at one source line and argument, however often: what was seen first, and how much in all."""

    kind: FindingKind
    argument: str
    site: int
    program: int
    first: str
    advice: str
    unit: str
    amount: int = 0
    programs: set[int] = field(default_factory=set)

    @property
    def message(self) -> str:
        in_all = f"{amount(self.amount, self.unit)} in {amount(len(self.programs), 'program')}"
        return f"{self.first}; {in_all}; {self.advice}"


class Incidents:
    """The faults of one launch, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int], Incident] = {}

    def __iter__(self) -> Iterator[Incident]:
        return iter(self._seen.values())

    def add(self, new: Incident, how_much: int, programs: set[int]) -> None:
        """Add to the incident of the same kind, argument and line; the first one's words stay."""
        incident = self._seen.setdefault((new.kind, new.argument, new.site), new)
        incident.amount += how_much
        incident.programs |= programs

    def findings(self, launch: str, grid: tuple[int, int, int], sites: list[tuple[str, int]]) -> tuple[Finding, ...]:
        return tuple(
            Finding(
                each.kind,
                launch,
                program_coordinates(each.program, grid),
                *sites[each.site],
                each.argument,
                each.message,
            )
            for each in self
        )


def amount(number: int, unit: str) -> str:
    """(1, "lane") → "1 lane"; (24, "lane") → "24 lanes"."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def base_name(file: str) -> str:
    return file.replace("\\", "/").rsplit("/", 1)[-1]


def program_coordinates(program: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """(x, y, z) of a program's number in the interpreter's order, in which z runs fastest."""
    rest, z = divmod(program, grid[2])
    x, y = divmod(rest, grid[1])
    return x, y, z
