"""Recording of a save in Python."""

__all__ = []
