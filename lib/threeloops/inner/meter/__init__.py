"""The traffic meter: what Triton kernels move and compute, counted while they run in Triton's interpreter.

Import it before the kernels are decorated: without a GPU, the import switches on the interpreter, with the repairs that
make it compute as a compiled kernel does (`threeloops.inner.interpreter`).
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand
from threeloops.inner.interpreter import enable_without_gpu

if TYPE_CHECKING:
    from threeloops.inner.meter.findings import Finding
    from threeloops.inner.meter.l2 import L2
    from threeloops.inner.meter.metering import Metered, meter
    from threeloops.inner.meter.traffic import ArgumentTraffic
else:
    import_on_demand(__name__)

__all__ = ["ArgumentTraffic", "Finding", "L2", "Metered", "meter"]

enable_without_gpu()
