"""A record of this machine, made without touching the GPU.

Asking CUDA would create a context, which takes hundreds of megabytes on the device and keeps the process from forking.
nvidia-smi answers the same questions, and also lists the GPUs that CUDA_VISIBLE_DEVICES hides from this process.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

import psutil

from threeloops.units import readable_bytes

__all__ = ["Gpu", "Machine", "find_cxx", "installed_version", "probe"]

_NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=name,compute_cap,memory.total,uuid,driver_version",
    "--format=csv,noheader,nounits",
)


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver lists it, visible to this process or not."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    uuid: str = ""

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.name} (sm_{major}{minor}, {readable_bytes(self.memory_bytes)})"


@dataclass(frozen=True)
class Machine:
    """The installed software and hardware. A version is None if the package is absent.

    `gpus` are in nvidia-smi's order, `supported_archs` is `torch.cuda.get_arch_list()`, `cxx` names the C++ compiler,
    and `ptxas` says whether Triton's wheel contains NVIDIA's assembler.
    """

    python: str
    platform: str
    cores: int
    memory_bytes: int
    torch: str | None = None
    triton: str | None = None
    numpy: str | None = None
    torch_cuda: str | None = None
    supported_archs: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda_visible_devices: str | None = None
    cxx: str | None = None
    ptxas: bool = False
    gloo: bool = False


def probe() -> Machine:
    """The record of this machine. Imports torch, creates no CUDA context; torch, triton and numpy may be absent."""
    gpus, driver = _parse_nvidia_smi(_ask_nvidia_smi())
    return Machine(
        python=platform.python_version(),
        platform=f"{sys.platform}-{platform.machine()}",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        triton=installed_version("triton"),
        numpy=installed_version("numpy"),
        gpus=gpus,
        driver=driver,
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        cxx=find_cxx(),
        ptxas=_has_ptxas(),
        **_probe_torch(),
    )


def _ask_nvidia_smi() -> str:
    """Return one line per GPU, or nothing if there is no driver."""
    if shutil.which(_NVIDIA_SMI[0]) is None:
        return ""
    try:
        answer = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def _parse_nvidia_smi(text: str) -> tuple[tuple[Gpu, ...], str | None]:
    """GPUs and driver version from lines such as "NVIDIA H200, 9.0, 143771, GPU-6b1f…, 580.65.06" (memory in MiB).

    Unknown memory ("[N/A]", on chips that share the host's) becomes 0; lines about no GPU ("No devices were found") are
    skipped.
    """
    gpus = []
    driver = None
    for line in re.finditer(r"^(.+), (\d+)\.(\d+), (\d+|\[.*\]), (GPU-\S+), (\S+)$", text, re.M):
        name, major, minor, mebibytes, uuid, driver = line.groups()
        memory_bytes = int(mebibytes) * 2**20 if mebibytes.isdigit() else 0
        gpus.append(Gpu(name, (int(major), int(minor)), memory_bytes, uuid))
    return tuple(gpus), driver


def _probe_torch() -> dict:
    try:
        import torch
        import torch.distributed
    except ImportError:
        return {}
    distributed = torch.distributed.is_available()
    return {
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "supported_archs": tuple(torch.cuda.get_arch_list()),
        "gloo": distributed and torch.distributed.is_gloo_available(),
    }


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def find_cxx() -> str | None:
    """The C++ compiler that torch.compile would use: $CXX, else the usual names."""
    candidates = (os.environ.get("CXX", ""), "g++", "clang++", "c++")
    return next((name for name in candidates if name and shutil.which(name)), None)


def _has_ptxas() -> bool:
    """Whether Triton's wheel contains NVIDIA's assembler, without importing triton, which would choose a driver."""
    spec = util.find_spec("triton")
    if spec is None or spec.origin is None:
        return False
    return (Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "ptxas").exists()
