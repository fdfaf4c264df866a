"""Compiling with no GPU, and reading what came out."""
