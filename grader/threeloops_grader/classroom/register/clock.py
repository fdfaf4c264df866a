"""Read the times that an instructor writes: in a time zone, with an offset, or as a date alone."""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from threeloops_grader.authoring.labs import LabError

__all__ = ["read_time", "require_zone", "shown"]

_TIME = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)(?:[ T](?P<clock>\d\d:\d\d(?::\d\d)?))? ?(?P<zone>Z|[A-Za-z]{2,5}|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)
_UNIVERSAL = ("UTC", "GMT", "Z")
_MEANT = {
    "CET": "Europe/Berlin", "CEST": "Europe/Berlin", "MET": "Europe/Berlin", "MEZ": "Europe/Berlin",
    "MESZ": "Europe/Berlin", "EET": "Europe/Athens", "EEST": "Europe/Athens", "WET": "Europe/Lisbon",
    "WEST": "Europe/Lisbon", "BST": "Europe/London", "EST": "America/New_York", "EDT": "America/New_York",
    "ET": "America/New_York", "CST": "America/Chicago or Asia/Shanghai", "CDT": "America/Chicago",
    "MST": "America/Denver", "MDT": "America/Denver", "PST": "America/Los_Angeles", "PDT": "America/Los_Angeles",
    "PT": "America/Los_Angeles", "HST": "Pacific/Honolulu", "IST": "Asia/Kolkata or Europe/Dublin",
    "JST": "Asia/Tokyo", "KST": "Asia/Seoul", "AEST": "Australia/Sydney", "AEDT": "Australia/Sydney",
}  # fmt: skip
"""Names of zones that people may mean by an abbreviation. Some of these abbreviations are zones in the system's
database, but with a fixed offset, so a due date in summer would be an hour off."""


def require_zone(name: str) -> ZoneInfo:
    """Return a time zone. Raises LabError for an abbreviation, and for anything else that is not the name of a zone."""
    if name.upper() in _MEANT:
        raise LabError(
            f"the time zone {name!r} is an abbreviation, which does not say when the clocks change; use the name of a "
            f"place, such as {_MEANT[name.upper()]}, or UTC"
        )
    if re.fullmatch(r"Etc/GMT[+-]\d+", name):
        raise LabError(
            f"the time zone {name!r} has its sign reversed (Etc/GMT+5 is 5 hours behind UTC); use the name of a place, "
            "or write the offset after each time, as in 2030-01-31 23:59-05:00"
        )
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        names = [zone for zone in available_timezones() if zone.casefold() == name.casefold()]
        hint = f"did you mean {names[0]}?" if names else "expected a name such as Europe/Berlin, or UTC"
        raise LabError(f"there is no time zone {name!r}; {hint}") from None


def read_time(text: str, zone: str, what: str = "the time", *, begins: bool = False) -> datetime:
    """Return a time in UTC. A date alone means the end of that day.

    A time can have an offset of its own, UTC, GMT, or the abbreviation that `zone` itself uses at that time. An
    abbreviation decides between the two hours of the same name when clocks are set back.

    Args:
        what: names the time in messages.
        begins: a date alone means the beginning of that day instead.

    Raises:
        LabError: this is not a time, or the clocks skip it, or it happens twice, or the abbreviation is not of `zone`.
    """
    match = _TIME.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        local = datetime.fromisoformat(f"{match['date']} {match['clock'] or ('00:00' if begins else '23:59:59')}")
        if match["zone"] is None or (match["zone"][0] not in "+-" and match["zone"].upper() not in _UNIVERSAL):
            of_day = None if match["clock"] else "begins" if begins else "ends"
            return _in_zone(local, zone, match["zone"], f"{what} {text!r}", of_day)
        return local.replace(tzinfo=_offset(match["zone"])).astimezone(UTC)
    except (ValueError, OverflowError):
        raise LabError(
            f"{what} {text!r} is not a time; expected YYYY-MM-DD HH:MM, also with +01:00, or YYYY-MM-DD for the end of "
            "that day"
        ) from None


def _offset(text: str) -> tzinfo:
    """Return the zone of `+01:00`, `+0100`, `+01` or `UTC`. Raises ValueError for an offset of a day and more."""
    if text.upper() in _UNIVERSAL:
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)


def _in_zone(local: datetime, name: str, abbreviation: str | None, told: str, of_day: str | None) -> datetime:
    """Return a local time in UTC. If it is the moment at which a day "begins" or "ends" and it happens twice, the day
    begins with the first and ends with the second."""
    zone = require_zone(name)
    readings = [local.replace(tzinfo=zone, fold=fold) for fold in (0, 1)]
    first, second = (time.astimezone(UTC) for time in readings)
    if not _exists(readings[0]):
        later, earlier = (_written(time.astimezone(zone)) for time in (first, second))
        raise LabError(
            f"{told} does not exist in {name}: the clocks skip it; write {earlier} or {later}, whichever is meant"
        )
    if abbreviation is not None:
        named = [time for time in readings if time.tzname() == abbreviation.upper()]
        if not named:
            raise LabError(
                f"{told} ends in {abbreviation}, and {name} is at {readings[0].tzname()} then; write the offset, as in "
                f"{_written(readings[0])}, or choose --timezone {_MEANT.get(abbreviation.upper(), 'Europe/Berlin')}"
            )
        return named[0].astimezone(UTC)
    if first != second and of_day is None:
        raise LabError(
            f"{told} happens twice in {name}, because clocks are set back; write {_written(readings[0])} for the first "
            f"time or {_written(readings[1])} for the second"
        )
    return first if of_day == "begins" else second


def _exists(time: datetime) -> bool:
    return time.astimezone(UTC).astimezone(time.tzinfo).replace(tzinfo=None) == time.replace(tzinfo=None)


def shown(time: datetime, zone: str) -> str:
    """Return a time as people in `zone` read it, as in `2030-01-31 23:59 CET`. Without a zone of its own, it is UTC."""
    local = (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(ZoneInfo(zone))
    name = local.tzname() or ""
    clock = f"{local:%H:%M:%S}".removesuffix(":00")
    return f"{local:%Y-%m-%d} {clock} {name if name.isalpha() else f'{local:%z}'}"


def _written(time: datetime) -> str:
    """Return a time with its offset and its zone's abbreviation, as in `2030-10-27 02:30+02:00 (CEST)`."""
    offset = time.strftime("%z")
    name = f" ({time.tzname()})" if (time.tzname() or "").isalpha() else ""
    return f"{time:%Y-%m-%d %H:%M}{offset[:3]}:{offset[3:5]}{name}"
