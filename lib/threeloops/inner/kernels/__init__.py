"""Triton kernels, one per file: the kernel, its launcher, a plain reference in PyTorch and its least cost.

Importing this package decides how kernels run in this process: compiled if there is a GPU, else in Triton's
interpreter, repaired for bfloat16 and fp8 (`threeloops.inner.interpreter`).
"""

from threeloops.inner import interpreter

interpreter.enable_without_gpu()
