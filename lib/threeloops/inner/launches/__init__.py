"""Recording Triton kernel launches: which kernel ran, on which grid, with which arguments, constants and options."""

from threeloops.inner.launches.launch import DescriptorArgument, FunctionName, Launch, TensorArgument
from threeloops.inner.launches.observing import observe, record

__all__ = ["DescriptorArgument", "FunctionName", "Launch", "TensorArgument", "observe", "record"]
