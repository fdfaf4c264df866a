"""Text for any terminal, and for any file."""

__all__ = ["encodable", "plain"]


def plain(text: str) -> str:
    """Return the text with escapes for all characters outside of ASCII, which not every terminal shows."""
    return text.encode("ascii", "backslashreplace").decode()


def encodable(text: str) -> str:
    """Return the text with lone surrogates, as in a file name that is not UTF-8, escaped. In JSON they read back the
    same."""
    return text.encode("utf-8", "backslashreplace").decode()
