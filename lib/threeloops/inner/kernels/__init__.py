"""Triton kernels, one per file: the kernel, its launcher, a plain reference in PyTorch and what it must cost.

Importing this package decides how kernels run in this process: compiled where there is a GPU, else in Triton's
interpreter, repaired for bfloat16 and fp8 (`threeloops.inner.interpreter`).
"""

from threeloops.inner import interpreter

interpreter.enable_without_gpu()
