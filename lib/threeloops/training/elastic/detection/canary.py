"""A canary: the first steps of a run with known losses, repeated on a machine before it is trusted with a job.

A deterministic program gives the same losses, bit for bit, on the same kind of machine with the same versions. So if
the losses differ although everything stored beside them is equal, the machine miscalculates, or the program itself has
changed.
"""

import json
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from threeloops.hardware.inventory import read_cpu

__all__ = ["Difference", "compare", "environment", "run_canary", "store_canary"]


@dataclass(frozen=True)
class Difference:
    """The first step whose loss is not the stored one."""

    step: int
    stored: float
    found: float
    ulps: int
    """How many floats lie between the two, of float32 if both are; a few look like another order of summation, and many
    like a fault."""
    changed: Mapping[str, tuple[str, str]]
    """The differences of the environment: values before and now."""

    def __str__(self) -> str:
        changes = "; ".join(f"{name}: {before} before, {now} now" for name, (before, now) in self.changed.items())
        return f"step {self.step}: loss {self.found!r} instead of {self.stored!r}, {self.ulps:,} floats apart. " + (
            f"Changed: {changes}" if changes else "Nothing has changed in the environment: suspect this machine"
        )


def environment() -> dict[str, str]:
    """Return the settings that losses may depend on. They contain no names of hosts or users."""
    backends = torch.backends
    settings = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": read_cpu()[0]["name"],
        "cpu capability": backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "float32 on the cpu": _precisions(backends.mkldnn.matmul, backends.mkldnn.conv),
    }
    if torch.cuda.is_available():
        settings |= {
            "gpu": torch.cuda.get_device_name(),
            "cuda": str(torch.version.cuda),
            "cudnn": str(backends.cudnn.version()),
            "float32 on the gpu": _precisions(backends.cuda.matmul, backends.cudnn.conv),
        }
    return settings


def _precisions(matmul: Any, conv: Any) -> str:
    """Whether products of float32 may be of TF32 or bfloat16, as `torch.backends` is set: "none" is its default."""
    return f"matmul {matmul.fp32_precision}, conv {conv.fp32_precision}"


def store_canary(path: Path | str, losses: Sequence[float]) -> None:
    """Store losses and this environment. Floats are stored as hexadecimal numbers, which are exact."""
    if not losses:
        raise ValueError("no losses: a canary needs one step or more")
    data = {"losses": [float(loss).hex() for loss in losses], "environment": environment()}
    new = Path(f"{path}.new")
    new.write_text(json.dumps(data, indent=1) + "\n")
    os.replace(new, path)


def run_canary(path: Path | str, train: Callable[[int], Sequence[float]]) -> Difference | None:
    """Repeat the stored steps, where `train(steps)` gives the loss of each. Returns None if all bits are equal."""
    data = json.loads(Path(path).read_text())
    stored = [float.fromhex(loss) for loss in data["losses"]]
    return compare(stored, train(len(stored)), data["environment"])


def compare(stored: Sequence[float], losses: Sequence[float], before: Mapping[str, str]) -> Difference | None:
    """Return the first difference between two lists of losses. The stored ones are from the environment `before`.

    Raises ValueError if their lengths differ.
    """
    if len(stored) != len(losses):
        raise ValueError(f"{len(losses)} losses for {len(stored)} stored ones: expected one for each step")
    now = environment()
    changed = {
        name: (before.get(name, "unknown"), now.get(name, "unknown"))
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    }
    for step, (theirs, ours) in enumerate(zip(stored, losses, strict=True)):
        if theirs.hex() != float(ours).hex():
            return Difference(step, theirs, float(ours), _ulps(theirs, float(ours)), changed)
    return None


def _ulps(a: float, b: float) -> int:
    """Steps from one float to the other, of float32 if both are, or else of float64. Floats of the same sign are in the
    order of the integers with the same bits.
    """
    if math.isnan(a) or math.isnan(b):
        return 2**63
    wide = torch.tensor([a, b], dtype=torch.float64)
    narrow = wide.float()
    if torch.equal(narrow.double(), wide):
        places = narrow.view(torch.int32).tolist()
        bits = 32
    else:
        places = wide.view(torch.int64).tolist()
        bits = 64
    first, second = (place if place >= 0 else -(2 ** (bits - 1)) - place for place in places)
    return abs(first - second)
