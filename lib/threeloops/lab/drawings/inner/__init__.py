"""Drawings for labs 01 to 07, a module per lab: kernels, formats of numbers, memory and data loading on one GPU."""
