"""Accesses that do not lie within one argument: which lanes may run, and what to say about the others."""

from typing import TYPE_CHECKING

import numpy as np

from threeloops.inner.bench.meter.addresses import ELSEWHERE, Space, ordinals_of
from threeloops.inner.bench.meter.findings import Incident
from threeloops.inner.bench.meter.patterns import Pattern

if TYPE_CHECKING:
    from threeloops.inner.bench.meter.recorder import Recording

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
