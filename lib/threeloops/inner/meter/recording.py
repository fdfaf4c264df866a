"""What the meter notes while a launch runs in Triton's interpreter: as little as possible.

An access becomes one row: its kind, whose memory, which pattern, where, by which program, at which source line.
Everything else is worked out after the launch (`analysis`), once a pattern and not once an access.

How much a program holds: the size of its tiles, and of all that it keeps at one time.

Every value of an interpreted kernel is one of the interpreter's handles, whether it was loaded, computed or made of a
constant. A handle counts from its making until the interpreter drops it, so a tile that a kernel still needs counts
under whatever name or in whatever tuple it is kept. A number of Python's that a kernel makes of a tensor, as a loop
bound is, cannot be followed: it counts as one element until the program ends.

Accesses that do not lie within one argument: which lanes may run, and what to say about the others.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from threeloops.inner.meter.accesses import (
    ELSEWHERE,
    WORD,
    Pattern,
    Patterns,
    Space,
    Spaces,
    ordinal_of,
    ordinals_of,
    unwrapped,
)
from threeloops.inner.meter.findings import Incident, Incidents, Unwritten, Watch
from threeloops.inner.meter.traffic import Flops


class Tiles:
    """Counts of one launch, in elements; tiles of pointers and masks count like those of values.

    `largest`: of one tile. `most_held`: of all tiles that one program holds at one time. `made` and `dropped` stand in
    for the handle's `__post_init__` and `__del__`.
    """

    def __init__(self) -> None:
        self.largest = 0
        self.most_held = 0
        self._held = 0
        self._program = 0

    def next_program(self) -> None:
        """What the one before held is gone, though its last handles may not be."""
        self._program += 1
        self._held = 0

    def made(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def counted(handle: Any) -> None:
            original(handle)
            size = handle.data.size
            handle.counted = (self._program, size)
            self._held += size
            self.largest = max(self.largest, size)
            self.most_held = max(self.most_held, self._held)

        return counted

    def number_made(self) -> None:
        self._held += 1
        self.most_held = max(self.most_held, self._held)

    def dropped(self, handle: Any) -> None:
        program, size = getattr(handle, "counted", (-1, 0))
        if program == self._program:
            self._held -= size


LOWEST_ADDRESS = 1 << 16
"""No memory is mapped below it: such a pointer is null with an offset."""
ADVICE = "mask what lies beyond the end, or correct the offsets"
VERBS = ("load", "store", "atomic", "atomic")


def sort_out(
    recorded: "Recording", kind: int, pattern: Pattern, base: int, site: int, value: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Note what lies in bounds, argument by argument, and report what does not.

    Returns a real address for every lane (uint64) and which lanes may run (bool), both flat. Pointers loaded from
    memory are real already: they belong to the argument that holds them, or lead elsewhere, where no bounds are known.
    """
    addresses = pattern.relative.view(np.uint64) + np.uint64(base)
    active = np.ones(len(addresses), bool) if pattern.mask is None else pattern.mask
    owners = ordinals_of(addresses)
    real, allowed = addresses.copy(), np.zeros(len(addresses), bool)

    def accept(space: Space, virtual: np.ndarray, lanes: np.ndarray) -> None:
        real[lanes] = virtual[lanes] + space.shift
        allowed[lanes] = True
        part, start = recorded.patterns.find(
            virtual.reshape(pattern.shape), lanes, pattern.itemsize, (site, space.ordinal)
        )
        recorded.note(kind, space, part, start, site, value)

    for owner in np.unique(owners[active]).tolist():
        lanes = active & (owners == owner)
        space = recorded.spaces.by_ordinal.get(owner)
        if owner == 0:
            for each in [each for each in recorded.spaces.by_ordinal.values() if each.ordinal]:
                virtual = addresses - each.shift
                inside = lanes & within(each, virtual, pattern.itemsize)
                if inside.any():
                    accept(each, virtual, inside)
                    lanes &= ~inside
            inside = lanes & (addresses >= LOWEST_ADDRESS) & (not recorded.arguments_only)
            space = recorded.spaces.elsewhere()
        elif space is not None:
            inside = lanes & within(space, addresses, pattern.itemsize)
        else:
            inside = np.zeros(len(lanes), bool)
        if inside.any() and space is not None:
            accept(space, addresses, inside)
        outside = lanes & ~inside
        if outside.any():
            first = message(VERBS[kind], space, addresses[outside], pattern.itemsize)
            name = space.name if space else ELSEWHERE
            incident = Incident("out-of-bounds", name, site, recorded.program, first, ADVICE, "lane")
            recorded.incidents.add(incident, int(np.count_nonzero(outside)), {recorded.program})
    return real, allowed


def within(space: Space, virtual: np.ndarray, itemsize: int) -> np.ndarray:
    offset = virtual - np.uint64(space.start)
    size = space.end - space.start
    return offset <= np.uint64(size - itemsize) if size >= itemsize else np.zeros(len(virtual), bool)


def message(verb: str, space: Space | None, addresses: np.ndarray, itemsize: int) -> str:
    if space is None or not space.ordinal:
        return f"{verb} through a pointer that leads into no argument, address {int(addresses[0]):#x}"
    elements = (addresses - np.uint64(space.first)).view(np.int64) // itemsize
    low, high, holds = int(elements.min()), int(elements.max()), (space.end - space.first) // itemsize
    which = f"element {low:,}" if low == high else f"elements {low:,} … {high:,}"
    return f"{verb} outside {space.name}: {which}, but it holds {holds:,} from its pointer on"


def unwritten_read(space: Space, itemsize: int, found: np.ndarray, kind: int, site: int, program: int) -> Incident:
    """The read of bytes that nothing wrote; `found` are their offsets in the storage."""
    elements = (found - (space.first - space.start)) // itemsize
    low, high = int(elements.min()), int(elements.max())
    which = f"element {low:,}" if low == high else f"elements between {low:,} and {high:,}"
    first = f"{VERBS[kind]} of {which} of {space.name}, which nothing has written since torch.empty allocated it"
    advice = "write it first, allocate it with torch.zeros, or mask the load"
    return Incident("uninitialised-read", space.name, site, program, first, advice, "byte")


LOAD, STORE, ATOMIC, RELAXED_ATOMIC = range(4)
"""Kinds of access. A relaxed atomic orders nothing but itself."""


class Access(NamedTuple):
    """One tile read, written or atomically updated. `base`: its first active lane, relative to the argument's space.
    `value`: its place among the recording's stored values, -1 for other kinds."""

    kind: int
    argument: int
    pattern: int
    base: int
    program: int
    site: int
    value: int


class Recording:
    """One launch. Programs are numbered in the interpreter's order, in which z runs fastest."""

    def __init__(self, watch: Watch | None = None) -> None:
        self.grid = (1, 1, 1)
        self.program = -1
        self.accesses: list[tuple] = []
        self.values: list[np.ndarray] = []
        self.patterns = Patterns()
        self.spaces = Spaces()
        self.flops = Flops()
        self.tiles = Tiles()
        self.sites: dict[tuple[str, int], int] = {}
        self.incidents = Incidents()
        self.arguments_only = False
        self.watch = watch
        self.unwritten: dict[int, Unwritten] = {}
        """By ordinal of the argument: storages that still hold bytes nobody has written."""

    def add_argument(self, name: str, original: Any, host: Any) -> None:
        space = self.spaces.add(name, original, host)
        unwritten = self.watch.of(unwrapped(original).untyped_storage()) if self.watch else None
        if unwritten is not None:
            self.unwritten[space.ordinal] = unwritten

    def access(self, kind: int, pointers: Any, mask: Any, value: np.ndarray | None = None) -> tuple[Any, Any]:
        """Note an access; returns the pointers and mask to execute it with: real addresses, no lane out of bounds.

        `mask` is a handle, an array or None, and so is what returns, unless lanes had to be masked: then never None.
        """
        addresses = pointers.data
        active = mask if mask is None or isinstance(mask, np.ndarray) else mask.data
        if active is not None and active.dtype != bool:
            active = active.astype(bool)
        site = self.site()
        itemsize = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        pattern, base = self.patterns.find(addresses, active, itemsize, site)
        if not pattern.lanes:
            return pointers, mask
        first, last = (base + pattern.low) % WORD, (base + pattern.high) % WORD
        space = self.spaces.by_ordinal.get(ordinal_of(first))
        if space is not None and space.ordinal and space.start <= first and last + itemsize <= space.end:
            self.note(kind, space, pattern, base, site, value)
            return type(pointers)(addresses + space.shift, pointers.dtype), mask
        real, allowed = sort_out(self, kind, pattern, base, site, value)
        allowed = allowed.reshape(addresses.shape)
        if mask is not None and not isinstance(mask, np.ndarray):
            allowed = type(mask)(allowed.astype(mask.data.dtype), mask.dtype)
        return type(pointers)(real.reshape(addresses.shape), pointers.dtype), allowed

    def note(self, kind: int, space: Space, pattern: Pattern, base: int, site: int, value: np.ndarray | None) -> None:
        place = -1
        if value is not None:
            place = len(self.values)
            self.values.append(value)
        self.accesses.append((kind, space.ordinal, pattern.index, base - space.zero, self.program, site, place))

    def check_read(self, since: int, value: np.ndarray) -> None:
        """Report bytes that the accesses noted `since` read before anything wrote them."""
        for kind, argument, index, base, program, site, _ in self.accesses[since:]:
            unwritten = self.unwritten.get(argument)
            if unwritten is None:
                continue
            space, pattern = self.spaces.by_ordinal[argument], self.patterns.all[index]
            found = unwritten.read(pattern, base - (space.start - space.zero), value)
            if len(found):
                incident = unwritten_read(space, pattern.itemsize, found, kind, site, program)
                self.incidents.add(incident, len(found), {program})

    def check_write(self, since: int) -> None:
        for _, argument, index, base, *_ in self.accesses[since:]:
            unwritten = self.unwritten.get(argument)
            if unwritten is not None:
                space = self.spaces.by_ordinal[argument]
                unwritten.write(self.patterns.all[index], base - (space.start - space.zero))

    def site(self) -> int:
        """The innermost source line that is the kernel's: neither Triton's nor ours."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and internal(frame.f_code.co_filename):
            frame = frame.f_back
        place = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)
        return self.sites.setdefault(place, len(self.sites))


_internal: dict[str, bool] = {}
MACHINERY = ("interpreter", "launches", "meter")
"""Rooms that stand between a kernel and what it calls."""


def internal(file: str) -> bool:
    """Whether a source file belongs to Triton or to this library's machinery rather than to a kernel."""
    if file not in _internal:
        import triton

        path = Path(file)
        inner = Path(__file__).parent.parent
        machinery = path.parent.parent == inner and path.parent.name in MACHINERY
        _internal[file] = machinery or Path(triton.__file__).parent in path.parents
    return _internal[file]
