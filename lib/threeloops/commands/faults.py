"""The one exception with which a command refuses what it was asked."""

__all__ = ["CommandError"]


class CommandError(Exception):
    """A command cannot do what it was asked. The message says why, and what to write instead."""
