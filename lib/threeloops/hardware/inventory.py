"""The system's report about this machine: the device to use, its name, memory, cores and caches."""

import os
import platform
from contextlib import suppress
from pathlib import Path

import psutil

from threeloops.hardware.accelerators import Caches

__all__ = ["chosen_device", "cpu_caches", "device", "read_cpu", "read_gpu"]

_CPU_SYSFS = Path("/sys/devices/system/cpu")
_VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}


def device() -> str:
    """Return the torch device to use: THREELOOPS_DEVICE ("cpu" or "cuda") if set, else "cuda" if there is a GPU, else
    "cpu".

    Raises ValueError for another name, and RuntimeError if "cuda" is requested and torch finds no CUDA device.
    """
    asked = os.environ.get("THREELOOPS_DEVICE", "").strip().lower()
    if asked not in ("", "cpu", "cuda"):
        raise ValueError(
            f"THREELOOPS_DEVICE = {asked!r}: expected 'cpu' or 'cuda', or unset to take a GPU if there is one"
        )
    if asked == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if asked == "cuda":
        raise RuntimeError(
            f"THREELOOPS_DEVICE = 'cuda', but torch {torch.__version__} finds no CUDA device here: "
            "unset it or set it to 'cpu'; `threeloops doctor` says what is missing"
        )
    return "cpu"


def chosen_device(on: str | None) -> str:
    """Return `on` itself, or `device()` if it is None. Raises ValueError for anything but "cpu" and "cuda"."""
    if on not in (None, "cpu", "cuda"):
        raise ValueError(f"on = {on!r}: expected 'cpu', 'cuda' or None to let THREELOOPS_DEVICE decide")
    return device() if on is None else on


def read_gpu() -> tuple[dict, str]:
    """Return the current GPU as fields of an Accelerator, and the source of each."""
    import torch

    seen = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": seen.name,
        "vendor": "AMD" if torch.version.hip else "NVIDIA",
        "memory_bytes": seen.total_memory,
        "multiprocessors": seen.multi_processor_count,
        "caches": Caches(
            shared_memory_bytes=seen.shared_memory_per_multiprocessor,
            shared_memory_per_block_bytes=getattr(seen, "shared_memory_per_block_optin", None),
            l2_bytes=seen.L2_cache_size,
        ),
    }, "the driver, by torch.cuda.get_device_properties"


def read_cpu() -> tuple[dict, str]:
    """Return the CPU as fields of an Accelerator, and the source of each."""
    info = Path("/proc/cpuinfo")  # psutil does not read the model and the vendor
    lines = info.read_text().splitlines() if info.exists() else []
    cpuinfo = {key.strip(): text.strip() for key, _, text in (line.partition(":") for line in reversed(lines))}
    return {
        "name": cpuinfo.get("model name") or platform.processor() or "CPU",
        "vendor": _VENDORS.get(cpuinfo.get("vendor_id", ""), cpuinfo.get("vendor_id", "")),
        "memory_bytes": psutil.virtual_memory().total,
        "multiprocessors": len(os.sched_getaffinity(0)),
        "caches": cpu_caches(),
    }, "/proc/cpuinfo, psutil and sysfs"


def cpu_caches(sysfs: Path = _CPU_SYSFS) -> Caches:
    """Data caches of the cores this process may use: L1 of one core; L2 and L3 of all, a shared one counted once."""
    caches: dict[str, dict[str, int]] = {}  # level → cores that share a cache → bytes
    for core in sorted(os.sched_getaffinity(0)):
        for index in sorted((sysfs / f"cpu{core}" / "cache").glob("index*")):
            with suppress(OSError):
                level, kind, size, shared = (
                    (index / name).read_text().strip() for name in ("level", "type", "size", "shared_cpu_list")
                )
                if kind != "Instruction":
                    caches.setdefault(level, {}).setdefault(shared, _parse_size(size))
    l1, l2, l3 = (list(caches.get(level, {}).values()) for level in "123")
    return Caches(l1_bytes=l1[0] if l1 else None, l2_bytes=sum(l2) or None, l3_bytes=sum(l3) or None)


def _parse_size(text: str) -> int:
    """sysfs writes "48K" for 48 KiB."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)
