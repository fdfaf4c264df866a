"""The hardware table, this machine measured in the same terms, and what it can run.

Importing this does not import torch: only the functions that measure do.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.hardware.accelerators import DTYPES, Accelerator, Caches, accelerator, accelerators
    from threeloops.hardware.inventory import cpu_caches, device
    from threeloops.hardware.measure import Measured, measure_copy_bandwidth, measure_matmul_rate, this_machine
else:
    import_on_demand(__name__)

__all__ = [
    "DTYPES", "Accelerator", "Caches", "Measured", "accelerator", "accelerators", "cpu_caches", "device",
    "measure_copy_bandwidth", "measure_matmul_rate", "this_machine",
]  # fmt: skip
