"""The traffic meter: what Triton kernels move and compute, counted while they run in Triton"s interpreter."""

from threeloops.inner.meter.metering import L2, ArgumentTraffic, Finding, Metered, meter

__all__ = ["ArgumentTraffic", "Finding", "L2", "Metered", "meter"]
