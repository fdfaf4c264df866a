"""What the meter notes while a launch runs in Triton's interpreter: as little as possible.

An access becomes one row: its kind, whose memory, which pattern, where, by which program, at which source line.
Everything else is worked out after the launch (`analysis`), once a pattern and not once an access.
"""

import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from threeloops.inner.bench.meter.addresses import WORD, Space, Spaces, ordinal_of, unwrapped
from threeloops.inner.bench.meter.bounds import sort_out, unwritten_read
from threeloops.inner.bench.meter.findings import Incidents
from threeloops.inner.bench.meter.flops import Flops
from threeloops.inner.bench.meter.patterns import Pattern, Patterns
from threeloops.inner.bench.meter.tiles import Tiles
from threeloops.inner.bench.meter.uninitialised import Unwritten, Watch

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
"""What stands between a kernel and what it calls: files beside the bench's folder, and folders in it."""


def internal(file: str) -> bool:
    """Whether a source file belongs to Triton or to this library's machinery rather than to a kernel."""
    if file not in _internal:
        import triton

        path = Path(file)
        bench = Path(__file__).parent.parent
        machinery = path.parent.name in MACHINERY if path.parent.parent == bench else path.stem in MACHINERY
        machinery = machinery and path.is_relative_to(bench.parent)
        _internal[file] = machinery or Path(triton.__file__).parent in path.parents
    return _internal[file]
