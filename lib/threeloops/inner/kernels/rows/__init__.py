"""Kernels that work along rows: normalisations, softmax, losses, elementwise chains."""
