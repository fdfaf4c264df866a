"""The traffic meter: what Triton kernels move and compute, counted while they run in Triton's interpreter."""

from threeloops.inner.meter.findings import Finding
from threeloops.inner.meter.l2 import L2
from threeloops.inner.meter.metering import Metered, meter
from threeloops.inner.meter.traffic import ArgumentTraffic

__all__ = ["ArgumentTraffic", "Finding", "L2", "Metered", "meter"]
