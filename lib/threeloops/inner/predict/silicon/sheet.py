"""The numbers of a data sheet that the predictions need, and how two activities overlap."""

from dataclasses import dataclass

import numpy as np

from threeloops.hardware.accelerators import Accelerator, accelerator

__all__ = ["L2_SPEED", "Sheet", "Sizes", "overlapped", "share_left", "sheet"]

Sizes = float | np.ndarray
"""One size, or an array of them, one per call."""
L2_SPEED = 2.5
"""The bandwidth of an L2 relative to its DRAM. Published microbenchmarks have 1.6 to 3. It is not fitted."""
_CLOCK = 1.7e9
"""Hz, for a device whose data sheet gives no clock (B200). Only the exponentials of attention depend on it."""


@dataclass(frozen=True)
class Sheet:
    """A device by its data sheet: bytes, bytes/s, FLOP/s and Hz. `link`: of NVLink, per direction; 0 without one."""

    name: str
    multiprocessors: int
    bandwidth: float
    l2: float
    clock: float
    link: float
    rates: dict[str, float]

    def rate(self, dtype: str) -> float:
        """Return dense FLOP/s. Raises LookupError if the sheet has none for `dtype`."""
        if dtype not in self.rates:
            raise LookupError(f"{self.name} has no rate for {dtype!r}; its data sheet has {', '.join(self.rates)}")
        return self.rates[dtype]

    def require_link(self) -> float:
        """Return the bandwidth of a link. Raises ValueError if there is none."""
        if not self.link:
            raise ValueError(
                f"{self.name} has no link between GPUs in the hardware table, so no communication is predicted"
            )
        return self.link


def sheet(device: str | Accelerator) -> Sheet:
    """Return the sheet of an accelerator, by name or from the hardware table.

    Raises ValueError if the table lacks one of the numbers, and LookupError for an unknown name.
    """
    of = accelerator(device) if isinstance(device, str) else device
    if not of.multiprocessors or not of.caches.l2_bytes:
        raise ValueError(
            f"{of.name}: multiprocessors = {of.multiprocessors} and l2_bytes = {of.caches.l2_bytes} in the hardware "
            "table, and a prediction needs both: choose a GPU whose data sheet gives them"
        )
    return Sheet(
        of.name,
        of.multiprocessors,
        of.memory_bandwidth,
        float(of.caches.l2_bytes),
        of.clock_hz or _CLOCK,
        of.link_bandwidth or 0.0,
        dict(of.rates),
    )


def overlapped(one: np.ndarray, other: np.ndarray, sharpness: float) -> np.ndarray:
    """Return the time of two activities that overlap, though not perfectly, in the units given.

    With sharpness 1 it is their sum, and it approaches the longer one as the sharpness grows.
    """
    longer = np.maximum(one, other)
    shorter = np.minimum(one, other)
    return longer * (1 + (shorter / np.maximum(longer, 1e-30)) ** sharpness) ** (1 / sharpness)


def share_left(size: np.ndarray, room: float, steepness: float) -> np.ndarray:
    """Return the share of `size` bytes that no longer lies in a cache with `room` bytes when it is used again."""
    return 1 / (1 + (room / np.maximum(size, 1.0)) ** steepness)
