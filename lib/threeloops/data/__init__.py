"""Feeding the GPU: sample formats on disk, prefetching, and resuming an interrupted epoch."""
