"""The code inspector: what Triton makes of a kernel, read from the code, for GPUs that need not be there."""

from threeloops.inner.codegen.inspection import (
    TARGETS,
    Code,
    CompileError,
    compile_kernel,
    compile_launches,
    end_worker,
    from_source,
    inspect,
)

__all__ = [
    "Code",
    "CompileError",
    "TARGETS",
    "compile_kernel",
    "compile_launches",
    "end_worker",
    "from_source",
    "inspect",
]
