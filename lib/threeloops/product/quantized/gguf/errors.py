"""Errors of files. They are in a separate module because all other modules of this package raise them."""

__all__ = ["GGUFError"]


class GGUFError(ValueError):
    """A file that is not a GGUF file, is damaged or cut short, or cannot be loaded. Nothing of it was used."""
