"""Kernels that work along rows: normalisations, softmax, losses, elementwise chains.

All of them move rows and strides that are multiples of 16 bytes 16 bytes at a time, others element by element, which is
several times slower.
"""
