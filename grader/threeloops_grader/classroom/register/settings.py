"""An instructor's settings for a class: due dates, the late policy, and points for the reflection."""

import json
import math
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from threeloops.files import replace_text

from threeloops_grader.authoring.labs import LabError, course_root, find_lab

__all__ = ["LatePolicy", "Settings", "class_folder", "load", "parse_due", "save"]

_DAY = 86_400


def class_folder(root: Path | None = None) -> Path:
    """Return the folder of a class's roster, settings, bundles, exports and reports. Git ignores it."""
    return (root or course_root()) / "class"


@dataclass(frozen=True)
class LatePolicy:
    """`percent_per_day` of the points are lost for each day begun after the grace period, at most `most_percent`.

    Work more than `closes_days` late earns nothing; None: it is accepted at any time.
    """

    percent_per_day: float = 0.0
    most_percent: float = 100.0
    grace_minutes: float = 0.0
    closes_days: float | None = None

    def __post_init__(self) -> None:
        for name in ("percent_per_day", "most_percent"):
            if not 0 <= getattr(self, name) <= 100:
                raise LabError(f"the late policy's {name} is {getattr(self, name):g}, expected 0 to 100")
        for name in ("grace_minutes", "closes_days"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1e6:
                raise LabError(f"the late policy's {name} is {value:g}, expected 0 or more")

    def changed(self, **given: float | None) -> "LatePolicy":
        """Return this policy, changed in the fields that are not None. With a `closes_days` of infinity it never
        closes."""
        new: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if new.get("closes_days") == math.inf:
            new["closes_days"] = None
        return replace(self, **new)

    def __str__(self) -> str:
        if self.percent_per_day == 0 and self.closes_days is None:
            return "Late work loses nothing."
        grace = f", {self.grace_minutes:g} minutes are free" if self.grace_minutes else ""
        closes = "" if self.closes_days is None else f"; after {self.closes_days:g} days it earns nothing"
        return (
            f"Late work loses {self.percent_per_day:g}% per day begun, at most {self.most_percent:g}%{grace}{closes}."
        )

    def penalty(self, score: float, seconds_late: float) -> float:
        """Return the points to take from `score`, for a submission `seconds_late` after its due date."""
        late = seconds_late - 60 * self.grace_minutes
        if late <= 0:
            return 0.0
        if self.closes_days is not None and late > _DAY * self.closes_days:
            return score
        days = -(-late // _DAY)
        return score * min(self.percent_per_day * days, self.most_percent) / 100


@dataclass(frozen=True)
class Settings:
    """`due` has a time in UTC per lab (ISO 8601); `released` are the labs that bundles hold. With `anonymous`,
    formgrader shows pseudonyms."""

    late: LatePolicy = field(default_factory=LatePolicy)
    due: dict[str, str] = field(default_factory=dict)
    released: tuple[str, ...] = ()
    reflection_points: float = 0.0
    anonymous: bool = False

    def due_date(self, slug: str) -> datetime | None:
        """Return the due date in UTC without a time zone, which is how nbgrader's gradebook keeps it."""
        return datetime.fromisoformat(self.due[slug]).replace(tzinfo=None) if slug in self.due else None

    def with_released(self, slug: str) -> "Settings":
        return replace(self, released=tuple(sorted({*self.released, slug})))


def parse_due(text: str, zone: str) -> tuple[str, str]:
    """Parse `01=2030-01-31 23:59` as a lab's slug and the time in UTC. A time with an offset of its own keeps it.

    Raises LabError: there is no such lab, no such time (also one that a change of clocks skips), or no such time zone.
    """
    name, _, when = text.partition("=")
    lab = find_lab(name)
    try:
        time = datetime.fromisoformat(when.strip())
    except ValueError:
        raise LabError(
            f"the due date {text!r} is not a time; expected LAB=YYYY-MM-DD HH:MM, also with +01:00"
        ) from None
    if len(when.strip()) <= len("2030-01-31"):
        time = time.replace(hour=23, minute=59, second=59)  # a date alone means its end
    if time.tzinfo is None:
        try:
            time = time.replace(tzinfo=ZoneInfo(zone))
        except (KeyError, ValueError, OSError):
            raise LabError(f"there is no time zone {zone!r}; expected a name such as Europe/Berlin, or UTC") from None
        if time.astimezone(UTC).astimezone(time.tzinfo).replace(tzinfo=None) != time.replace(tzinfo=None):
            raise LabError(f"the due date {text!r} does not exist in {zone}: the clocks skip it; take another time")
    return lab.slug, time.astimezone(UTC).isoformat()


def load(root: Path | None = None) -> Settings:
    """Return the settings of the class, or the defaults if there are none. Raises LabError if the file is damaged."""
    path = class_folder(root) / "settings.json"
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        late = LatePolicy(**data.pop("late"))
        settings = Settings(late=late, **{**data, "released": tuple(data["released"])})
        for slug in settings.due:
            settings.due_date(slug)
        return settings
    except FileNotFoundError:
        return Settings()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LabError(f"{path} is damaged ({error!r}); run `threeloops class init` again") from None


def save(settings: Settings, root: Path | None = None) -> None:
    folder = class_folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / "settings.json", json.dumps(asdict(settings), indent=1) + "\n")
