"""Triton kernels on a CPU: Triton's own interpreter, repaired, and switched on if there is no GPU."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.inner.interpreter.interpreting import enable_without_gpu, interpreted
else:
    import_on_demand(__name__)

__all__ = ["enable_without_gpu", "interpreted"]
