"""The share of a data sheet's link bandwidth that NCCL reaches."""

import math
from functools import cache

import numpy as np

from threeloops.hardware.accelerators import accelerator
from threeloops.hardware.measured.published import measured

__all__ = ["host_link_share", "link_share"]

_OPERATIONS = ("all_gather", "reduce_scatter")


@cache
def link_share(name: str) -> float:
    """Return the share of its sheet's link bandwidth that the accelerator called `name` reaches with NCCL.

    It is the bus bandwidth (as nccl-tests count it) of the largest all-gather and reduce-scatter among the GPUs of a
    node with NVLink switches, measured by NVIDIA, not by us. An accelerator that was not measured has the median of
    those that were.
    """
    gpu = accelerator(name)
    table = measured("nccl")
    linked = [device for device in np.unique(table["device"]) if accelerator(device).link_bandwidth]
    if gpu.name not in linked:
        return float(np.median([link_share(device) for device in linked]))
    reached = np.mean([_bus_bandwidth(gpu.name, operation, 8) for operation in _OPERATIONS])
    return float(reached) / (gpu.link_bandwidth or math.inf)


@cache
def host_link_share() -> float:
    """Return the share of PCIe's bandwidth that NCCL reaches between two GPUs without a link of their own.

    Measured by NVIDIA on the L40S. Four and eight of these GPUs reach a quarter and a sixteenth of it, which is due to
    that machine's switches and sockets, so it is no property of the GPU.
    """
    bandwidth = accelerator("L40S").host_link_bandwidth
    assert bandwidth is not None
    return float(np.mean([_bus_bandwidth("L40S", operation, 2) for operation in _OPERATIONS]) / bandwidth)


def _bus_bandwidth(device: str, operation: str, ranks: int) -> float:
    rows = measured("nccl").where(device=device, op_name=operation, num_gpus=ranks, nccl_dtype="half")
    largest = int(np.argmax(rows["bytes"]))
    return (ranks - 1) / ranks * rows["bytes"][largest] / rows["seconds"][largest]
