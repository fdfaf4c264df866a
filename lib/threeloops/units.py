"""Numbers formatted with a suitable unit."""

__all__ = ["readable_bytes", "readable_count"]


def readable_bytes(number: float) -> str:
    """8388608 → "8 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} TiB"


def readable_count(number: float) -> str:
    """268435456 → "268.4 M"."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return f"{number:.0f}"
