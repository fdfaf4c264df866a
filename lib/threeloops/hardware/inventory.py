"""What the system says about this machine: the device to use, its name, memory, cores and caches. Nothing is timed."""

import os
import platform
from pathlib import Path

from threeloops.hardware.accelerators import Caches

CPU_SYSFS = Path("/sys/devices/system/cpu")
VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}


def device() -> str:
    """The torch device to use: THREELOOPS_DEVICE ("cpu" or "cuda") if set, else "cuda" where there is one, else "cpu".

    Raises ValueError for another name, RuntimeError where "cuda" is asked for and torch finds no CUDA device.
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
    """`on` itself, or `device()` where it is None. Raises ValueError for anything but "cpu" and "cuda"."""
    if on not in (None, "cpu", "cuda"):
        raise ValueError(f"on = {on!r}: expected 'cpu', 'cuda' or None to let THREELOOPS_DEVICE decide")
    return device() if on is None else on


def read_gpu() -> tuple[dict, str]:
    """What the driver says of the current GPU, as fields of an Accelerator, and where it was read."""
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
    """What the system says of the CPU, as fields of an Accelerator, and where it was read."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    said = {key.strip(): text.strip() for key, _, text in (line.partition(":") for line in reversed(lines))}
    return {
        "name": said.get("model name") or platform.processor() or "CPU",
        "vendor": VENDORS.get(said.get("vendor_id", ""), said.get("vendor_id", "")),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "multiprocessors": len(os.sched_getaffinity(0)),
        "caches": cpu_caches(),
    }, "/proc/cpuinfo, sysconf and sysfs"


def cpu_caches(sysfs: Path = CPU_SYSFS) -> Caches:
    """Data caches of the cores this process may use: L1 of one core; L2 and L3 of all, a shared one counted once."""
    total: dict[int, int] = {}
    first: dict[int, int] = {}
    counted = set()
    for core in sorted(os.sched_getaffinity(0)):
        for index in sorted((sysfs / f"cpu{core}" / "cache").glob("index*")):
            try:
                level, kind, size, shared = (
                    (index / name).read_text().strip() for name in ("level", "type", "size", "shared_cpu_list")
                )
            except OSError:
                continue
            if kind == "Instruction" or (level, shared) in counted:
                continue
            counted.add((level, shared))
            size_bytes = parse_size(size)
            first.setdefault(int(level), size_bytes)
            total[int(level)] = total.get(int(level), 0) + size_bytes
    return Caches(l1_bytes=first.get(1), l2_bytes=total.get(2), l3_bytes=total.get(3))


def parse_size(text: str) -> int:
    """sysfs writes "48K" for 48 KiB."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)
