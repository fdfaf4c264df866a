"""Checkpoints that lose nothing."""

__all__ = []
