"""Triton kernels on a CPU: Triton"s own interpreter, switched on where there is no GPU and made right for what this
course computes in it."""

from threeloops.inner.interpreter.interpreting import enable_without_gpu, interpreted, preflight

__all__ = ["enable_without_gpu", "interpreted", "preflight"]
