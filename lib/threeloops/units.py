"""Numbers: formatted with a suitable unit, and checked."""

__all__ = [
    "readable",
    "readable_bytes",
    "readable_count",
    "readable_duration",
    "readable_seconds",
    "require_whole",
    "time_unit",
]


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
    """Return the factor from seconds to the unit of an axis of this length, and that unit: µs, ms or s."""
    return (1e6, "µs") if 0 < seconds < 1e-3 else (1e3, "ms") if 0 < seconds < 1 else (1.0, "s")


def readable(value: float, unit: str) -> str:
    """A number with its unit as a person prints it: (1234567.8, "USD") → "$1,234,568", (0.6, "share") → "60%".

    Bytes, tokens, seconds, shares, dollars and dollars per something have forms of their own; any other unit follows
    its number, which has four digits, or all digits before the point.
    """
    if value < 0:
        return f"−{readable(-value, unit)}"
    base, per, what = unit.partition("/")
    if base == "USD":
        return f"${_amount(value)}{per}{what}"
    if base == "share":
        return f"{_digits(100 * value)}%{per}{what}"
    match unit:
        case "bytes":
            return readable_bytes(value)
        case "tokens" if value >= 1e6:
            return f"{readable_count(value)} tokens"
        case "s":
            return readable_duration(value)
        case "GPU" if value != 1:
            unit = "GPUs"
    return f"{_digits(value)} {unit}".rstrip()


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.4g}"


def _amount(value: float) -> str:
    """Format an amount of money: cents below a thousand, and more digits if a cent is too coarse."""
    if value >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def require_whole(least: int = 1, *, of: str = "", **values: object) -> None:
    """Check that each value is an int (not a bool) of at least `least`.

    >>> require_whole(layers=0)
    Traceback (most recent call last):
    ValueError: layers = 0: expected a whole number, at least 1

    Args:
        of: what the number counts, for the message ("requests").

    Raises:
        ValueError: names the first value that is out of range.
    """
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} = {value!r}: expected a whole number{of and f' of {of}'}, at least {least}")
