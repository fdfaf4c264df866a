"""Faults on purpose, for tests and labs: of processes, storage and numbers.

The cluster has deaths and slowness at a virtual time (`RankDies`, `SlowRank`, `SlowLink`). These are the others: faults
of a file, a tensor, or a real process.
"""

import builtins
import contextlib
import errno
import io
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "corrupt_gradient",
    "flip_bit",
    "flip_bit_in_file",
    "full_disk",
    "kill_once",
    "slow_disk",
    "torn_write",
]


def kill_once(marker: Path | str) -> None:
    """End this process with SIGKILL, unless the file `marker` exists already. So a restart gets past it."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def torn_write(path: Path | str, keep: float = 0.5) -> None:
    """Leave the first part of a file, as a crash does in the middle of a write."""
    if not 0 <= keep < 1:
        raise ValueError(f"keep = {keep}: expected a part of the file, from 0 to below 1")
    os.truncate(path, int(os.path.getsize(path) * keep))


def flip_bit_in_file(path: Path | str, bit: int) -> None:
    """Flip bit number `bit` of a file's content."""
    bits = 8 * os.path.getsize(path)
    if not 0 <= bit < bits:
        raise ValueError(f"bit = {bit}: {path} has bits 0 to {bits - 1}")
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte[0] ^ 1 << bit % 8]))


@torch.no_grad()
def flip_bit(tensor: Tensor, element: int, bit: int) -> None:
    """Flip one bit of an element, counted row by row, in place: bit 0 is the last of the mantissa of a float."""
    size = 8 * tensor.element_size()
    if not (0 <= element < tensor.numel() and 0 <= bit < size):
        raise ValueError(
            f"element = {element}, bit = {bit}: expected less than {tensor.numel()} and less than {size}, 0 or more"
        )
    value = tensor.reshape(-1)[element : element + 1].clone()
    value.view(torch.uint8)[bit // 8] ^= 1 << bit % 8  # little-endian, as all machines that torch runs on
    tensor.masked_scatter_((torch.arange(tensor.numel(), device=tensor.device) == element).view(tensor.shape), value)


@contextlib.contextmanager
def corrupt_gradient(
    parameter: torch.nn.Parameter, change: Callable[[Tensor], None], step: int = 0
) -> Iterator[list[int]]:
    """A context in which `change` edits this parameter's gradient in place in backward number `step` (from 0), before
    anything is reduced. This imitates a rank that miscalculates silently. `lambda g: g.fill_(math.nan)` makes it loud.

    Yields a list that gets the number of the backward when it has happened.
    """
    happened: list[int] = []
    count = iter(range(1 << 62))

    def hook(gradient: Tensor) -> Tensor:
        if (number := next(count)) != step:
            return gradient
        happened.append(number)
        changed = gradient.clone()
        change(changed)
        return changed

    handle = parameter.register_hook(hook)
    try:
        yield happened
    finally:
        handle.remove()


class _Disk(io.FileIO):
    """A file on a disk with a number of bytes left, or a number of bytes per second."""

    def __init__(self, path: Any, mode: str, remaining: list[float], bandwidth: float) -> None:
        super().__init__(path, mode)
        self._remaining = remaining
        self._bandwidth = bandwidth

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        allowed = int(min(len(view), self._remaining[0]))
        if allowed < len(view):  # what fits is written, as by the kernel
            super().write(view[:allowed])
            self._remaining[0] -= allowed
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.name)
        time.sleep(len(view) / self._bandwidth)
        self._remaining[0] -= len(view)
        return super().write(view) or 0


def full_disk(folder: Path | str, remaining: int) -> contextlib.AbstractContextManager[None]:
    """A context in which writes below `folder` fail with ENOSPC after `remaining` more bytes.

    This covers files that Python opens for writing in binary mode, with `open`, `Path.open` or `Path.write_bytes`, and
    therefore a `LocalStore`. It does not cover `os.open`, or C++ libraries (`torch.save` to a path). For states that a
    crash may leave behind, see `checkpoint.crash`.
    """
    return _disk(folder, [float(remaining)], float("inf"))


def slow_disk(folder: Path | str, bandwidth: float) -> contextlib.AbstractContextManager[None]:
    """A context in which the files that `full_disk` covers take `bandwidth` bytes per second."""
    if not bandwidth > 0:
        raise ValueError(f"bandwidth = {bandwidth} bytes/s: expected more than 0")
    return _disk(folder, [float("inf")], bandwidth)


@contextlib.contextmanager
def _disk(folder: Path | str, remaining: list[float], bandwidth: float) -> Iterator[None]:
    plain, below = builtins.open, Path(folder).resolve()

    def opened(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        writes = "b" in mode and set(mode) & set("wax+")
        if not (writes and isinstance(path, (str, os.PathLike)) and Path(path).resolve().is_relative_to(below)):
            return plain(path, mode, *arguments, **options)
        raw = _Disk(path, mode.replace("b", ""), remaining, bandwidth)
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    builtins.open = io.open = opened  # type: ignore[assignment]  # pathlib calls the second
    try:
        yield
    finally:
        builtins.open = io.open = plain
