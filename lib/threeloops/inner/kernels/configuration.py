"""What a kernel is shipped with: tile sizes, warps and pipeline stages, chosen for each target, not searched for at
run time. Autotuning is a lab's subject; a library that starts in one second is another matter.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache

import torch

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
"""A100, H100 and H200, B200, MI300X: the devices that every kernel here is compiled and inspected for."""

_INTERPRETED = "sm_90"
_forced: ContextVar[str | None] = ContextVar("target", default=None)


@dataclass(frozen=True)
class Configuration:
    """Compile-time constants of one kernel, its warps a program and the depth of its software pipeline."""

    constants: Mapping[str, int] = field(hash=False)
    num_warps: int = 4
    num_stages: int = 1

    def options(self) -> dict[str, int]:
        """Keyword arguments of a launch."""
        return {**self.constants, "num_warps": self.num_warps, "num_stages": self.num_stages}


def target() -> str:
    """The target that launchers choose their configuration for: one of TARGETS.

    The one that `compiling_for` named; else the nearest of TARGETS that the current GPU can run; else, in the
    interpreter, sm_90, so that traffic metered on a laptop is that of the configuration for the H100.
    """
    return _forced.get() or _of_this_machine()


@contextmanager
def compiling_for(name: str) -> Iterator[None]:
    """Let launchers choose as if for `name`, one of TARGETS. Raises ValueError for another."""
    if name not in TARGETS:
        raise ValueError(f"target = {name!r}: expected one of {', '.join(TARGETS)}")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


@cache
def _of_this_machine() -> str:
    if not torch.cuda.is_available():
        return _INTERPRETED
    if torch.version.hip:
        return "gfx942"
    major, _ = torch.cuda.get_device_capability()
    return "sm_100" if major >= 10 else "sm_90" if major == 9 else "sm_80"
