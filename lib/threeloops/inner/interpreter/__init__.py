"""Triton kernels on a CPU: Triton's own interpreter, repaired, and switched on where there is no GPU."""

from threeloops.inner.interpreter.interpreting import enable_without_gpu, interpreted

__all__ = ["enable_without_gpu", "interpreted"]
