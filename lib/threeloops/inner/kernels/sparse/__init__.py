"""Attention that skips tiles: a sliding window, and a mask of blocks."""
