"""What a program launches: every Triton kernel launch inside a block, as it happens, whoever wrote the kernel."""

from threeloops.inner.launches.recording import (
    DescriptorArgument,
    FunctionName,
    Launch,
    TensorArgument,
    observe,
    record,
)

__all__ = ["DescriptorArgument", "FunctionName", "Launch", "TensorArgument", "observe", "record"]
