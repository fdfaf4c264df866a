"""Collectives within one node: NCCL's rings, the sums of an NVSwitch, and the all-reduce of inference engines."""

from dataclasses import dataclass

import numpy as np

from threeloops.inner.predict.silicon.constants import constant
from threeloops.inner.predict.silicon.sheet import Sheet, Sizes

__all__ = ["OPERATIONS", "CustomAllReduce", "Ring", "SwitchedRing", "collective_seconds", "custom_all_reduce_seconds"]

OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce", "alltoall")


@dataclass(frozen=True)
class Ring:
    """Constants of one device and operation. Seconds, or shares of what the data sheet says."""

    start: float = constant(6e-6, 1e-6, 3e-5)
    """Seconds of a call with nothing to send, between two ranks."""
    hop: float = constant(1e-6, 1e-8, 1e-5)
    """Seconds of each further round."""
    pipe: float = constant(8e-6, 1e-8, 1e-4)
    """Seconds to fill the pipeline of chunks."""
    reach: float = constant(0.8, 0.3, 1.0)
    """Share of the sheet's bandwidth of a link."""


@dataclass(frozen=True)
class SwitchedRing(Ring):
    """A ring, or the sums of an NVSwitch (NVLS) where they are faster. Only all-reduce has it, from the H100 on."""

    switch: float = constant(0.65, 0.3, 1.0)
    """Share of the sheet's bandwidth of a link if the switch adds."""
    set_up: float = constant(1e-5, 1e-8, 5e-5)
    """Seconds that NVLS takes longer to start than a ring."""


@dataclass(frozen=True)
class CustomAllReduce:
    """Constants of one device and inference engine. Seconds, or shares of what the data sheet says."""

    start: float = constant(2.5e-6, 1e-6, 3e-5)
    """Seconds of a call with nothing to send."""
    hop: float = constant(2e-7, 1e-9, 1e-5)
    """Seconds for each other rank that a rank waits for."""
    reach: float = constant(0.75, 0.3, 1.0)
    """Share of the sheet's bandwidth of a link."""
    second: float = constant(3e-6, 1e-8, 1e-4)
    """Seconds of the second phase, if the work is shared."""


def collective_seconds(device: Sheet, operation: str, ranks: Sizes, size: Sizes, constants: Ring) -> np.ndarray:
    """Return the seconds of one collective of NCCL among `ranks` GPUs of a node.

    `size` is in bytes: the whole buffer, as in nccl-tests (https://github.com/NVIDIA/nccl-tests). In a ring, a rank
    sends (n − 1)/n of it, twice for an all-reduce. With `SwitchedRing` the switch adds if that is faster, and a rank
    sends (n + 1)/n. Chunks travel in a pipeline: if it takes P seconds to fill and S to send, the best number of chunks
    gives (√P + √S)². Raises ValueError for another operation, or a device without links.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"operation = {operation!r}: expected one of {', '.join(OPERATIONS)}")
    ranks, size = (np.asarray(value, dtype=float) for value in (ranks, size))
    link = device.require_link()
    rounds = 2 if operation == "all_reduce" else 1
    sent = rounds * (ranks - 1) / ranks * size
    seconds = constants.hop * rounds * (ranks - 2) + _piped(sent / (link * constants.reach), constants.pipe)
    if isinstance(constants, SwitchedRing) and operation == "all_reduce":
        sums = _piped((1 + 1 / ranks) * size / (link * constants.switch), constants.pipe)
        seconds = np.minimum(seconds, constants.set_up + sums)
    return constants.start + seconds


def custom_all_reduce_seconds(device: Sheet, ranks: Sizes, size: Sizes, constants: CustomAllReduce) -> np.ndarray:
    """Return the seconds of an all-reduce by loads and stores over NVLink, inside a CUDA graph, for `size` bytes.

    Either every rank reads everything from all others, or each adds its part and a second phase hands the sums out, as
    in vLLM's custom_all_reduce. The faster way counts. Raises ValueError for a device without links.
    """
    ranks, size = (np.asarray(value, dtype=float) for value in (ranks, size))
    rate = device.require_link() * constants.reach
    one_shot = (ranks - 1) * size / rate
    two_shot = constants.second + 2 * (ranks - 1) / ranks * size / rate
    return constants.start + constants.hop * (ranks - 1) + np.minimum(one_shot, two_shot)


def _piped(stream: np.ndarray, fill: float) -> np.ndarray:
    """Return the seconds of a stream in chunks, beyond the time to fill the pipeline, which `start` contains."""
    return (np.sqrt(fill) + np.sqrt(stream)) ** 2 - fill
