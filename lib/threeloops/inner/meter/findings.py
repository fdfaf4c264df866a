"""What is wrong with a launch: accesses outside an argument, reads of memory that nothing wrote, races between
programs.

Memory that nobody has written: what `torch.empty` and its relatives hand out while a meter is on.

How the meter knows. While metering, but not during a launch (the interpreter itself allocates), a TorchDispatchMode
sees every torch operation. What comes from `empty`, `empty_like`, `empty_strided`, `empty_permuted`, `new_empty` or
`new_empty_strided` is watched: one flag a byte says "not written yet". Torch operations clear the flags of what their
schema says they write, kernels clear those they store to. As a second witness, watched memory is filled with a poison
byte (NaN in every floating-point format): a read is reported only where the flags are up *and* the poison is still
there, so that writes which torch does not announce (through numpy, ctypes, DLPack) are no false alarms.

What it cannot see: reads by torch operations; storages above LARGEST bytes, of bool, or allocated before the meter;
memory gained by `resize_`; a write of the poison itself that torch does not announce is taken for none.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from threeloops.inner.meter.accesses import Pattern

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


LARGEST = 1 << 28
EMPTY = {
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
}
NAN_BYTE, OTHER_BYTE = 0xFF, 0xA5


class Unwritten:
    """A watched storage. `flags`: one bool a byte, True where nothing has been written."""

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        floating = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        self.poison = NAN_BYTE if floating else OTHER_BYTE
        storage.fill_(self.poison)
        self.flags = np.ones(storage.nbytes(), bool)
        # While this reference is held, the storage's identity is given to no other.
        self.alive = StorageWeakRef(storage)

    def write(self, pattern: Pattern, base: int) -> None:
        pattern.mark(self.flags, base, False)

    def read(self, pattern: Pattern, base: int, value: np.ndarray) -> np.ndarray:
        """Offsets of the bytes that this access, which found `value`, reads although nothing wrote them."""
        if not pattern.look(self.flags, base).any():
            return np.empty(0, np.int64)
        active = (pattern.active + base)[:, None] + np.arange(pattern.itemsize)
        raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8).reshape(-1, pattern.itemsize)
        raw = raw if pattern.mask is None else raw[pattern.mask]
        return active[self.flags[active] & (raw == self.poison)]

    def write_tensor(self, tensor: torch.Tensor) -> None:
        """Clear the flags of a tensor's own elements."""
        item = tensor.element_size()
        shape, strides = (*tensor.shape, item), (*(stride * item for stride in tensor.stride()), 1)
        start = tensor.storage_offset() * item
        if tensor.numel():
            np.lib.stride_tricks.as_strided(self.flags[start:], shape, strides)[...] = False


class Effect(NamedTuple):
    """What an operation's schema says it does: whether it hands out new memory, and which arguments it writes."""

    allocates: bool
    places: tuple[int, ...]
    names: tuple[str, ...]


def effect_of(operation: Any) -> Effect:
    schema = getattr(operation, "_schema", None)
    if schema is None:
        # A higher-order operator: what it runs comes by again.
        return Effect(False, (), ())
    written = [
        (place, argument.name)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    # `torch.empty(…, out=x)` hands out x.
    allocates = schema.name in EMPTY and not written
    return Effect(allocates, tuple(place for place, _ in written), tuple(name for _, name in written))


class Watch(TorchDispatchMode):
    """Sees allocations and writes of torch. `paused` during launches."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self.watched: dict[int, Unwritten] = {}
        self._effects: dict[Any, Effect] = {}

    def of(self, storage: torch.UntypedStorage) -> Unwritten | None:
        """The flags of a storage, if it is watched and holds bytes that nobody has written."""
        unwritten = self.watched.get(storage._cdata)
        if unwritten is None:
            return None
        # Flags only ever go down; a storage without any, or that was resized, is never looked at again.
        if unwritten.flags.any() and len(unwritten.flags) == storage.nbytes():
            return unwritten
        del self.watched[storage._cdata]
        return None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.paused:
            return result
        effect = self._effects.get(func)
        if effect is None:
            effect = self._effects[func] = effect_of(func)
        if effect.allocates:
            self._watch(result)
        elif self.watched:
            self._wrote([args[place] for place in effect.places if place < len(args)])
            self._wrote([kwargs.get(name) for name in effect.names])
        return result

    def _watch(self, tensor: torch.Tensor) -> None:
        plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and tensor.device.type != "meta"
        if not plain or tensor.dtype == torch.bool or not 0 < tensor.untyped_storage().nbytes() <= LARGEST:
            return
        gone = [identity for identity, unwritten in self.watched.items() if unwritten.alive.expired()]
        for identity in gone:
            del self.watched[identity]
        self.watched[tensor.untyped_storage()._cdata] = Unwritten(tensor)

    def _wrote(self, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            for each in value:
                self._wrote(each)
        elif isinstance(value, torch.Tensor) and value.layout == torch.strided:
            unwritten = self.of(value.untyped_storage())
            if unwritten is not None:
                unwritten.write_tensor(value)
