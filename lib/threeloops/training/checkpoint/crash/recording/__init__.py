"""How a save in Python is recorded."""

__all__ = []
