"""Which source of a kernel is admitted: pure `tl` arithmetic, and constants that say what they are."""
