"""Drawings of the times that NVIDIA measured, beside what the labs predict for them."""
