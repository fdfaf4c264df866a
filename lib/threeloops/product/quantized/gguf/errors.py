"""Errors of files, in a separate module because all others raise them."""

__all__ = ["GGUFError"]


class GGUFError(ValueError):
    """A file that is no GGUF file, is damaged or cut short, or holds what cannot be loaded. Nothing of it was used."""
