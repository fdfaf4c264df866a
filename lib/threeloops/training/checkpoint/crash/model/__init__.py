"""What a save did, and what a crash may leave of it."""

__all__ = []
