"""Errors of files, in a separate module because all others raise them."""

__all__ = ["GGUFError"]


class GGUFError(ValueError):
    """A file that is not a GGUF file, is damaged or cut short, or cannot be loaded. Nothing of it was used."""
