"""Numbers formatted with a suitable unit."""

__all__ = ["readable_bytes", "readable_count", "readable_duration", "readable_seconds", "time_unit"]


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


def readable_seconds(seconds: float) -> str:
    """0.0047357 → "4.736 ms"."""
    scale, unit = time_unit(seconds)
    return f"{seconds * scale:.4g} {unit}"


def readable_duration(seconds: float) -> str:
    """5400 → "1.5 h": what people plan by, from minutes on; below two minutes like `readable_seconds`."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return readable_seconds(seconds)


def time_unit(seconds: float) -> tuple[float, str]:
    """What to multiply seconds by for an axis of this length, and its unit: µs, ms or s."""
    return (1e6, "µs") if 0 < seconds < 1e-3 else (1e3, "ms") if 0 < seconds < 1 else (1.0, "s")
