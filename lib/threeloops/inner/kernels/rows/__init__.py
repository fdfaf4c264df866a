"""Kernels that work along rows: normalisations, softmax, losses, elementwise chains.

If rows and strides are multiples of 16 bytes, these kernels move 16 bytes at a time. Otherwise they move element by
element, which is several times slower.
"""
