"""The hardware table, the machine at hand measured the same way, and what this machine can run.

Importing this imports no torch: the functions that measure do, when they are called.
"""

from threeloops.hardware.accelerators import DTYPES, Accelerator, Caches, accelerator, accelerators
from threeloops.hardware.inventory import cpu_caches, device
from threeloops.hardware.measure import Measured, measure_copy_bandwidth, measure_matmul_rate, this_machine

__all__ = [
    "DTYPES",
    "Accelerator",
    "Caches",
    "Measured",
    "accelerator",
    "accelerators",
    "cpu_caches",
    "device",
    "measure_copy_bandwidth",
    "measure_matmul_rate",
    "this_machine",
]
