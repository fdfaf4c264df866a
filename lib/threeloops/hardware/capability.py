"""The capabilities of a machine, as a pure function of a record of it, so that any machine can be tested anywhere.

`probe` fills in the record, a `Machine`, for the machine at hand. A missing capability is not an error: it has a reason
and a next step, and the course works without it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from threeloops.hardware.probe import Gpu, Machine, probe

__all__ = [
    "Capability", "Gpu", "Machine", "OLDEST_CAPABILITY", "Report", "TRITON_OLDEST_CAPABILITY", "capabilities",
    "compiler", "gpu", "interpreter", "probe", "ranks", "runs_on", "visible_devices",
]  # fmt: skip

OLDEST_CAPABILITY = (7, 5)
"""Turing: the oldest GPU in the CUDA 12.8–13.2 wheels of torch 2.11–2.13. Only the legacy CUDA 12.6 wheels still hold
kernels for Maxwell, Pascal and Volta (sm_50, sm_60, sm_70). Source: the support matrix in PyTorch's RELEASE.md, and
`torch.cuda.PYTORCH_RELEASES_CODE_CC` of torch 2.13. Used only where a build does not list its own architectures."""

TRITON_OLDEST_CAPABILITY = (8, 0)
"""Ampere: the oldest NVIDIA GPU that Triton supports. Source: Triton's README, "Compatibility"."""

_OLDEST_DRIVER = {12: 525, 13: 580}
"""CUDA major version → the oldest driver branch that runs it. Source: NVIDIA, CUDA Compatibility, table 1."""

_INSTALL = "install the packages that the course requires"
"""The doctor knows how: that depends on whether there is a checkout."""


@dataclass(frozen=True)
class Capability:
    """Whether something works, and why or why not in one sentence that ends with the next step."""

    available: bool
    detail: str


@dataclass(frozen=True)
class Report:
    """The four capabilities, and the GPUs by their place in `Machine.gpus`, in the order CUDA enumerates them."""

    interpreter: Capability
    compiler: Capability
    ranks: Capability
    gpu: Capability
    visible_devices: tuple[int, ...]
    usable_devices: tuple[int, ...]

    def items(self) -> list[tuple[str, Capability]]:
        return [(name, getattr(self, name)) for name in ("interpreter", "compiler", "ranks", "gpu")]


def capabilities(machine: Machine) -> Report:
    visible = visible_devices(machine.cuda_visible_devices, [gpu.uuid for gpu in machine.gpus])
    usable = tuple(i for i in visible if _has_kernels(machine, machine.gpus[i]))
    return Report(
        interpreter=interpreter(machine),
        compiler=compiler(machine),
        ranks=ranks(machine),
        gpu=gpu(machine, visible, usable),
        visible_devices=visible,
        usable_devices=usable,
    )


def visible_devices(variable: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """The GPUs, by place in `uuids`, that this value of CUDA_VISIBLE_DEVICES leaves visible, in CUDA's order.

    None (unset) shows all, an empty string none. Otherwise it is a comma-separated list of ordinals, or of UUIDs or
    their beginnings ("GPU-8932f937"); the first entry that names no GPU, or more than one, hides itself and everything
    after it. Source: CUDA Programming Guide, "CUDA Environment Variables". Two rules follow PyTorch
    (`torch.cuda._parse_visible_devices`) instead: a device named twice leaves none, and the first entry decides whether
    the list holds ordinals or UUIDs. MIG slices are not in the record.
    """
    if variable is None:
        return tuple(range(len(uuids)))
    entries = [entry.strip() for entry in variable.split(",")]
    by_uuid = entries[0].startswith("GPU-")
    visible: list[int] = []
    for entry in entries:
        if by_uuid:
            gpus = [i for i, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
        else:  # like C's strtoul, which CUDA uses, read the leading digits only: "1gpu" is 1
            number = re.match(r"[+-]?\d+", entry)
            gpus = [int(number[0])] if number and 0 <= int(number[0]) < len(uuids) else []
        if len(gpus) != 1:
            break
        if gpus[0] in visible:
            return ()
        visible += gpus
    return tuple(visible)


def _has_kernels(machine: Machine, gpu: Gpu) -> bool:
    """Whether this torch build holds code that `gpu` can execute, and the driver can load it."""
    if machine.torch_cuda is None or _driver_too_old(machine):
        return False
    if not machine.supported_archs:
        return gpu.capability >= OLDEST_CAPABILITY
    return any(runs_on(arch, gpu.capability) for arch in machine.supported_archs)


def runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Whether code built for `arch` ("sm_90", "compute_90", "sm_90a", "sm_100f") runs on this compute capability.

    Machine code (sm) runs within its major version, on the same or a higher minor one. The driver compiles PTX
    (compute) for anything as new or newer. A final "a" restricts code to exactly one chip, "f" to its family.
    Source: NVIDIA, "Family-Specific Architecture Features" (CUDA 12.9) and the architectures' compatibility guides.
    """
    parts = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
    if parts is None:
        raise ValueError(f"arch = {arch!r}: expected a name such as 'sm_90' or 'compute_120'")
    kind = parts[1]
    suffix = parts[4]
    built_for = (int(parts[2]), int(parts[3]))
    if suffix == "a":
        return capability == built_for
    if kind == "compute" and not suffix:
        return capability >= built_for
    return capability[0] == built_for[0] and capability >= built_for


def _driver_too_old(machine: Machine) -> bool:
    if machine.driver is None or machine.torch_cuda is None:
        return False
    return int(machine.driver.split(".")[0]) < _OLDEST_DRIVER.get(int(machine.torch_cuda.split(".")[0]), 0)


def interpreter(machine: Machine) -> Capability:
    """Triton kernels executed on the CPU, one program at a time (TRITON_INTERPRET=1)."""
    missing = [name for name in ("torch", "triton", "numpy") if getattr(machine, name) is None]
    if missing:
        return Capability(False, f"needs {' and '.join(missing)}: {_INSTALL}")
    if _release(machine.triton or "") == (3, 6) and _release(machine.numpy or "") >= (2, 4):
        return Capability(
            False, f'triton {machine.triton} cannot loop over numpy {machine.numpy} integers: pip install "numpy<2.4"'
        )
    return Capability(True, f"triton {machine.triton}: kernels run on the CPU, slowly, with exact float32")


def compiler(machine: Machine) -> Capability:
    """Kernels to GPU machine code without a GPU (Triton, ptxas) and models to C++ (torch.compile)."""
    missing = []
    if machine.triton is None or not machine.ptxas:
        missing.append(f"no triton with ptxas ({_INSTALL}): generated GPU code cannot be read")
    if machine.cxx is None:
        missing.append("no C++ compiler (apt install g++): torch.compile and Triton's launcher cannot build")
    if missing:
        return Capability(False, "; ".join(missing))
    return Capability(True, f"triton {machine.triton} with ptxas, and {machine.cxx}")


def ranks(machine: Machine) -> Capability:
    """Several processes that talk through torch.distributed."""
    if machine.torch is None or not machine.gloo:
        return Capability(False, f"needs torch with gloo: {_INSTALL}")
    if machine.cores == 1:
        return Capability(True, "gloo, but 1 core: ranks take turns, so values and bytes are right and times are not")
    return Capability(True, f"gloo, on {machine.cores} cores")


def gpu(machine: Machine, visible: tuple[int, ...], usable: tuple[int, ...]) -> Capability:
    """A GPU that this process may see and this torch has kernels for."""
    if not machine.gpus:
        return Capability(False, "no NVIDIA GPU found: the CPU path gives all the points")
    present = ", ".join(str(gpu) for gpu in machine.gpus)
    if machine.torch is None:
        return Capability(False, f"{present}: needs torch: {_INSTALL}")
    if machine.torch_cuda is None:
        return Capability(False, f"{present}: but torch {machine.torch} was built without CUDA: install a CUDA wheel")
    if _driver_too_old(machine):
        needed = _OLDEST_DRIVER[int(machine.torch_cuda.split(".")[0])]
        return Capability(
            False, f"driver {machine.driver} cannot run CUDA {machine.torch_cuda}: needs {needed} or newer"
        )
    if not visible:
        return Capability(
            False, f"{present}: hidden by CUDA_VISIBLE_DEVICES={machine.cuda_visible_devices!r}: unset it to see them"
        )
    if not usable:
        archs = ", ".join(machine.supported_archs) or f"sm_{OLDEST_CAPABILITY[0]}{OLDEST_CAPABILITY[1]} and newer"
        unsupported = ", ".join(str(machine.gpus[i]) for i in visible)
        return Capability(
            False, f"{unsupported}: torch {machine.torch} has kernels for {archs} only: the CPU path gives all points"
        )
    detail = ", ".join(f"cuda:{visible.index(i)} = {machine.gpus[i]}" for i in usable)
    if any(machine.gpus[i].capability < TRITON_OLDEST_CAPABILITY for i in usable):
        detail += "; Triton supports sm_80 and newer: on an older one its kernels may not compile"
    return Capability(True, detail)


def _release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version: "3.6.0+git" → (3, 6)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
