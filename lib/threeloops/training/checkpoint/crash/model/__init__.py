"""A model of file systems: the operations of a save, and the states that a crash may leave."""

__all__ = []
