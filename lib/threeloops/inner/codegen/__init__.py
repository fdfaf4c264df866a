"""The code inspector: show the code to which Triton compiles a kernel, for any GPU, even if this machine does not have
it."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.inner.codegen.compiler_process import end_worker
    from threeloops.inner.codegen.generated_code import Code
    from threeloops.inner.codegen.inspection import CompileError, compile_launches, inspect
    from threeloops.inner.codegen.kernel_source import from_source
else:
    import_on_demand(__name__)

__all__ = ["Code", "CompileError", "compile_launches", "end_worker", "from_source", "inspect"]
