"""The meter's notes while a launch runs in Triton's interpreter, which are as few as possible.

An access becomes one row: its kind, argument, pattern, place, program and source line. Everything else is worked out
after the launch (`counting`), per pattern rather than per access. Only accesses that do not lie within one argument are
examined here, because some of their lanes may have to be masked.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from threeloops.inner.interpreter.stack import kernel_frame
from threeloops.inner.meter.accesses import ELSEWHERE, WORD, Pattern, Patterns, Space, Spaces, ordinal_of, unwrapped
from threeloops.inner.meter.findings import (
    FindingKind,
    Incident,
    Incidents,
    UndefinedLanes,
    Unwritten,
    Watch,
)
from threeloops.inner.meter.traffic import Flops
from threeloops.places import source_name

__all__ = [
    "ATOMIC",
    "Access",
    "LOAD",
    "RELAXED_ATOMIC",
    "Recording",
    "STORE",
    "VERBS",
    "array_of",
    "elements_named",
    "within",
]

LOAD, STORE, ATOMIC, RELAXED_ATOMIC = range(4)
"""Kinds of access. A relaxed atomic orders nothing but itself."""
VERBS = ("load", "store", "atomic", "atomic")
_WITH_ARTICLE = ("a load", "a store", "an atomic operation", "an atomic operation")
_LOWEST_ADDRESS = 1 << 16
"""No memory is mapped below it, so such a pointer is null plus an offset."""
_OUT_OF_BOUNDS_ADVICE = "mask what lies beyond the end, or correct the offsets"
_UNWRITTEN_ADVICE = "write it first, allocate it with torch.zeros, or mask the load"
_UNDEFINED_ADVICE = "give that load an `other`, or leave these lanes out with the mask or tl.where"
_ASSERT_ADVICE = "the kernel went on; a GPU checks assertions only with TRITON_DEBUG=1, and then stops"


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


class _Tiles:
    """Sizes of one launch's tiles in elements: `largest` is the largest tile, and `most_held` the most that a program
    holds at once.

    Every value of an interpreted kernel (loaded, computed, constant, pointer or mask) is one of the interpreter's
    handles. A handle counts from its creation until the interpreter drops it, so a tile that the kernel still needs
    counts under any name. A Python number made from a tensor, such as a loop bound, cannot be followed, so it counts as
    one element until the program ends. `made` and `dropped` replace the handle's `__post_init__` and `__del__`.
    """

    def __init__(self) -> None:
        self._program = [0, 0, 0]
        """Counts of elements: those that the running program holds, the most that any has held, and those of the
        largest tile. It is a list, so that each handle can keep the list of its own program."""
        self._paused: list[list[int]] = []

    @property
    def most_held(self) -> int:
        return self._program[1]

    @property
    def largest(self) -> int:
        return self._program[2]

    @property
    def paused(self) -> bool:
        return bool(self._paused)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave tiles that are made meanwhile out of the counts."""
        self._paused.append(self._program)
        self._program = [0, 0, 0]
        try:
            yield
        finally:
            self._program = self._paused.pop()

    def next_program(self) -> None:
        """Forget the tiles of the previous program, some of which Python may not have dropped yet."""
        self._program = [0, *self._program[1:]]

    def made(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def counted(handle: Any) -> None:
            original(handle)
            # Without calls: this runs for every operation of a kernel.
            size = handle.data.size
            program = self._program
            handle.counted = size, program
            program[0] = held = program[0] + size
            if held > program[1]:
                program[1] = held
            if size > program[2]:
                program[2] = size

        return counted

    def number_made(self) -> None:
        self._program[0] += 1
        self._program[1] = max(self._program[:2])

    @staticmethod
    def dropped(handle: Any) -> None:
        try:
            size, program = handle.counted
        except AttributeError:  # made before the launch
            return
        program[0] -= size


def _sort_out(
    recorded: "Recording", kind: int, pattern: Pattern, base: int, site: int, value: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Note the lanes in bounds, argument by argument, and report the others.

    Returns a real address for every lane (uint64) and which lanes may run (bool), both flat. Pointers that a kernel
    loaded from memory are real already. They belong to the argument that they point into, or they lead to other memory,
    whose bounds are not known.
    """
    addresses = pattern.relative.view(np.uint64) + np.uint64(base)
    active = np.ones(len(addresses), bool) if pattern.mask is None else pattern.mask
    owners = ordinal_of(addresses)
    real, allowed = addresses.copy(), np.zeros(len(addresses), bool)

    def accept(space: Space, virtual: np.ndarray, lanes: np.ndarray) -> None:
        real[lanes] = virtual[lanes] + space.shift
        allowed[lanes] = True
        virtual = virtual.reshape(pattern.shape)
        part, start = recorded.patterns.find(virtual, lanes, pattern.itemsize, (site, space.ordinal))
        recorded.note(kind, space, part, start, site, value)

    for owner in np.unique(owners[active]).tolist():
        lanes = active & (owners == owner)
        space = recorded.spaces.by_ordinal.get(owner)
        if owner == 0:
            for argument in [argument for argument in recorded.spaces.by_ordinal.values() if argument.ordinal]:
                virtual = addresses - argument.shift
                inside = lanes & within(argument, virtual, pattern.itemsize)
                if inside.any():
                    recorded.followed.add(len(recorded.accesses))
                    accept(argument, virtual, inside)
                    lanes &= ~inside
            inside = lanes & (addresses >= _LOWEST_ADDRESS) & (not recorded.arguments_only)
            space = recorded.spaces.elsewhere()
        elif space is not None:
            inside = lanes & within(space, addresses, pattern.itemsize)
        else:
            inside = np.zeros(len(lanes), bool)
        if inside.any() and space is not None:
            accept(space, addresses, inside)
        outside = lanes & ~inside
        if outside.any():
            first = f"{VERBS[kind]} {_misdirected(space, addresses[outside], pattern.itemsize)}"
            name = space.name if space else ELSEWHERE
            recorded.report("out-of-bounds", name, site, first, _OUT_OF_BOUNDS_ADVICE, "lane", int(outside.sum()))
    return real, allowed


def within(space: Space, virtual: np.ndarray, itemsize: int) -> np.ndarray:
    offset = virtual - np.uint64(space.start)
    size = space.end - space.start
    return offset <= np.uint64(size - itemsize) if size >= itemsize else np.zeros(len(virtual), bool)


def _misdirected(space: Space | None, addresses: np.ndarray, itemsize: int) -> str:
    if space is None or not space.ordinal:
        return f"through a pointer that leads into no argument, address {int(addresses[0]):#x}"
    elements = (addresses - np.uint64(space.first)).view(np.int64) // itemsize
    holds = (space.end - space.first) // itemsize
    which = elements_named(elements, "elements {:,} … {:,}")
    return f"outside {space.name}: {which}, but it holds {holds:,} from its pointer on"


def elements_named(elements: np.ndarray, several: str) -> str:
    """Return the text for one element or for a range of them, "elements {} … {}"."""
    low = int(elements.min())
    high = int(elements.max())
    return f"element {low:,}" if low == high else several.format(low, high)


def array_of(mask: Any) -> np.ndarray | None:
    """Return the values of a mask, which the interpreter passes as a handle, an array or None."""
    return mask if mask is None or isinstance(mask, np.ndarray) else mask.data


class Recording:
    """One launch. Programs are numbered in the interpreter's order: z runs fastest."""

    def __init__(self, watch: Watch | None = None) -> None:
        self.grid = (1, 1, 1)
        self.program = -1
        self.accesses: list[tuple] = []
        self.values: list[np.ndarray] = []
        self.patterns = Patterns()
        self.spaces = Spaces()
        self.flops = Flops()
        self.tiles = _Tiles()
        self.sites: dict[tuple[str, int], int] = {}
        self.incidents = Incidents()
        self.arguments_only = False
        self.strict_views = False
        self.followed: set[int] = set()
        """Accesses through pointers that the kernel loaded from memory, by their place in `accesses`."""
        self.other_given = False
        """Whether the `tl.load` that runs now has an `other`."""
        self.undefined: UndefinedLanes | None = None
        self.watch = watch
        self.unwritten: dict[int, Unwritten] = {}
        """Storages with bytes that nobody has written yet, by the argument's ordinal."""

    def add_argument(self, name: str, original: Any, host: Any) -> None:
        space = self.spaces.add(name, original, host)
        unwritten = self.watch.of(unwrapped(original).untyped_storage()) if self.watch else None
        if unwritten is not None:
            self.unwritten[space.ordinal] = unwritten

    def access(self, kind: int, pointers: Any, mask: Any, value: np.ndarray | None = None) -> tuple[Any, Any]:
        """Note an access. Returns the pointers and mask to execute it with: real addresses, no lane out of bounds.

        The returned mask has the type of `mask` (handle, array or None), but if lanes had to be masked it is not None.
        """
        addresses = pointers.data
        active = array_of(mask)
        if active is not None and active.dtype.kind != "b":
            active = active.astype(bool)
        site = self.site()
        itemsize = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        pattern, base = self.patterns.find(addresses, active, itemsize, site)
        if not pattern.lanes:
            return pointers, mask
        first = (base + pattern.low) % WORD
        last = (base + pattern.high) % WORD
        space = self.spaces.by_ordinal.get(ordinal_of(first))
        if space is not None and space.ordinal and space.start <= first and last + itemsize <= space.end:
            self.note(kind, space, pattern, base, site, value)
            return type(pointers)(addresses + space.shift, pointers.dtype), mask
        real, allowed = _sort_out(self, kind, pattern, base, site, value)
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
        for kind, argument, index, base, _, site, _ in self.accesses[since:]:
            unwritten = self.unwritten.get(argument)
            if unwritten is None:
                continue
            space = self.spaces.by_ordinal[argument]
            pattern = self.patterns.all[index]
            offsets = unwritten.read(pattern, base - (space.start - space.zero), value)
            if len(offsets):
                elements = (offsets - (space.first - space.start)) // pattern.itemsize
                which = f"{elements_named(elements, 'elements between {:,} and {:,}')} of {space.name}"
                first = f"{VERBS[kind]} of {which}, which nothing has written since torch.empty allocated it"
                self.report("uninitialised-read", space.name, site, first, _UNWRITTEN_ADVICE, "byte", len(offsets))

    def check_write(self, since: int) -> None:
        for _, argument, index, base, *_ in self.accesses[since:]:
            unwritten = self.unwritten.get(argument)
            if unwritten is not None:
                space = self.spaces.by_ordinal[argument]
                unwritten.write(self.patterns.all[index], base - (space.start - space.zero))

    def check_assert(self, condition: np.ndarray, message: str) -> None:
        """Report the lanes for which a `tl.device_assert` fails."""
        failed = int(np.count_nonzero(np.logical_not(condition)))
        if failed:
            failure = f"tl.device_assert failed: {message}" if message else "tl.device_assert failed"
            self.report_here("failed-assert", failure, _ASSERT_ADVICE, "lane", failed)

    def follow_undefined_lanes(self) -> None:
        self.undefined = UndefinedLanes(self.uncounted, self._branched)

    def stop_following(self) -> None:
        if self.undefined:
            self.undefined.stop()

    def check_defined(self, since: int, kind: int, mask: Any, pointers: Any, value: Any = None) -> None:
        """Report undefined lanes that an access needs. `since` is the end of the list of accesses before it."""
        active = array_of(mask)
        active = None if active is None else active.astype(bool, copy=False)
        for use, handle, lanes in (("value", value, active), ("address", pointers, active), ("mask", mask, None)):
            used = self.undefined.used(handle, lanes) if self.undefined else None
            if used:
                ordinal = self.accesses[since][1] if len(self.accesses) > since else 0
                name = self.spaces.by_ordinal[ordinal].name if ordinal else ELSEWHERE
                self._report_undefined(f"the {use} of {_WITH_ARTICLE[kind]} ({name})", name, *used)

    def _branched(self, load: int) -> None:
        self._report_undefined("a branch", "", 1, load)

    def _report_undefined(self, use: str, argument: str, lanes: int, load: int) -> None:
        file, line = list(self.sites)[load]
        first = (
            f"{use} depends on masked lanes of the load at {source_name(file)}:{line}, which has no `other`, so that "
            "they are undefined"
        )
        self.report("undefined-lane", argument, self.site(), first, _UNDEFINED_ADVICE, "lane", lanes)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Compute something that the kernel does not compute itself."""
        counts = dict(self.flops.counts)
        tf32 = self.flops.tf32
        try:
            with self.tiles.pause():
                yield
        finally:
            self.flops.counts.update(counts)
            self.flops.tf32 = tf32

    def report(
        self, kind: FindingKind, argument: str, site: int, first: str, advice: str, unit: str, amount: int
    ) -> None:
        """Add an incident of the program that runs now."""
        program = self.program
        self.incidents.add(Incident(kind, argument, site, program, first, advice, unit, amount, {program}))

    def report_here(self, kind: FindingKind, first: str, advice: str, unit: str, amount: int) -> None:
        """Add an incident at the current line that does not concern an argument. Within `uncounted`, add none."""
        if not self.tiles.paused:
            self.report(kind, "", self.site(), first, advice, unit, amount)

    def site(self) -> int:
        """Return the number of the innermost source line that belongs to the kernel, not to Triton or to this
        library."""
        frame = kernel_frame()
        place = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)
        return self.sites.setdefault(place, len(self.sites))
