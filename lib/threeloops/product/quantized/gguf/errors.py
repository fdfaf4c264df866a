"""What can be wrong with a file, in a module of its own because all others raise it."""

__all__ = ["GGUFError"]


class GGUFError(ValueError):
    """A file that is no GGUF file, is damaged or cut short, or holds what cannot be loaded. Nothing of it was used."""
