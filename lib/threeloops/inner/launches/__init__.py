"""Recording Triton kernel launches: which kernel ran, on which grid, with which arguments, constants and options."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.inner.launches.binding import signature_of
    from threeloops.inner.launches.launch import DescriptorArgument, FunctionName, Launch, TensorArgument
    from threeloops.inner.launches.observing import observe, record
    from threeloops.inner.launches.tuning import Configurations, checked
else:
    import_on_demand(__name__)

__all__ = [
    "Configurations", "DescriptorArgument", "FunctionName", "Launch", "TensorArgument", "checked", "observe", "record",
    "signature_of",
]  # fmt: skip
