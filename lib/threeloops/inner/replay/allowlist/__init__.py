"""Decide which kernel source is admitted: pure `tl` arithmetic, and constants computed from literals."""
