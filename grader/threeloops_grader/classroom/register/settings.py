"""An instructor's settings for a class: due dates, the late policy, and points for the reflection."""

import json
import math
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from threeloops.files import replace_text

from threeloops_grader.authoring.labs import LabError, course_root, find_lab
from threeloops_grader.classroom.register.clock import read_time

__all__ = ["LatePolicy", "Settings", "class_folder", "load", "parse_due", "save"]

_DAY = 86_400


def class_folder(root: Path | None = None) -> Path:
    """Return the folder of a class's roster, settings, bundles, exports and reports. Git ignores it."""
    return (root or course_root()) / "class"


@dataclass(frozen=True)
class LatePolicy:
    """`percent_per_day` of the points are lost for each day begun after the grace period, at most `most_percent`.

    Work more than `closes_days` late earns nothing; None: it is accepted at any time. Over the term, each student has
    `slip_days` that cost nothing, of which a lab takes at most `slip_most`; None: as many as there are.
    """

    percent_per_day: float = 0.0
    most_percent: float = 100.0
    grace_minutes: float = 0.0
    closes_days: float | None = None
    slip_days: int = 0
    slip_most: int | None = None

    def __post_init__(self) -> None:
        for name in ("percent_per_day", "most_percent"):
            if not 0 <= getattr(self, name) <= 100:
                raise LabError(f"the late policy's {name} is {getattr(self, name):g}, expected 0 to 100")
        for name in ("grace_minutes", "closes_days", "slip_days", "slip_most"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1e6:
                raise LabError(f"the late policy's {name} is {value:g}, expected 0 or more, and below 1,000,000")

    def changed(self, **given: float | None) -> "LatePolicy":
        """Return this policy, changed in the fields that are not None. With a `closes_days` of infinity it never
        closes, and with a `slip_most` of -1 a lab takes all slip days."""
        new: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if new.get("closes_days") == math.inf:
            new["closes_days"] = None
        if new.get("slip_most") == -1:
            new["slip_most"] = None
        return replace(self, **new)

    def __str__(self) -> str:
        if self.is_free:
            return "Late work loses nothing."
        grace = f", {self.grace_minutes:g} minutes are free" if self.grace_minutes else ""
        closes = "" if self.closes_days is None else f"; after {self.closes_days:g} days it earns nothing"
        return (
            f"Late work loses {self.percent_per_day:g}% per day begun, at most {self.most_percent:g}%{grace}{closes}."
            f"{self._slip()}"
        )

    def _slip(self) -> str:
        if not self.slip_days:
            return ""
        most = "" if self.slip_most is None else f", at most {self.slip_most} of them for one lab"
        return f" The first {self.slip_days} late days of a term are free{most}."

    @property
    def is_free(self) -> bool:
        """Whether lateness costs nothing."""
        return 0 in (self.percent_per_day, self.most_percent) and self.closes_days is None

    def days_late(self, seconds_late: float) -> int:
        """Return the days begun after the grace period."""
        return max(0, math.ceil((seconds_late - 60 * self.grace_minutes) / _DAY))

    def share(self, seconds_late: float) -> float:
        """Return the share of the points, 0 to 1, that a submission loses `seconds_late` after its due date."""
        late = seconds_late - 60 * self.grace_minutes
        if late <= 0:
            return 0.0
        if self.closes_days is not None and late > _DAY * self.closes_days:
            return 1.0
        return min(self.percent_per_day * self.days_late(seconds_late), self.most_percent) / 100

    def penalty(self, score: float, seconds_late: float) -> float:
        """Return the points to take from `score`, never more than it has."""
        return max(0.0, score) * self.share(seconds_late)


@dataclass(frozen=True)
class Settings:
    """`due` and `opened` have a time in UTC per lab (ISO 8601): the due date, and when students got the lab. `released`
    are the labs that bundles hold. `timezone` is that of times without an offset.
    With `anonymous`, formgrader shows pseudonyms."""

    late: LatePolicy = field(default_factory=LatePolicy)
    due: dict[str, str] = field(default_factory=dict)
    released: tuple[str, ...] = ()
    reflection_points: float = 0.0
    opened: dict[str, str] = field(default_factory=dict)
    timezone: str = "UTC"
    attempts: str = "last"
    anonymous: bool = False

    def due_date(self, slug: str) -> datetime | None:
        """Return the due date in UTC without a time zone, which is how nbgrader's gradebook keeps it."""
        return datetime.fromisoformat(self.due[slug]).replace(tzinfo=None) if slug in self.due else None

    def opening(self, slug: str) -> datetime | None:
        """Return when students got a lab, in UTC without a time zone, or None if that is not known."""
        return datetime.fromisoformat(self.opened[slug]).replace(tzinfo=None) if slug in self.opened else None

    def with_released(self, slug: str, now: datetime) -> "Settings":
        """Return these settings with one more released lab. A second release does not change when it was opened."""
        opened = self.opened
        if slug not in self.released and slug not in opened:
            opened = {**opened, slug: now.isoformat(timespec="seconds")}
        return replace(self, released=tuple(sorted({*self.released, slug})), opened=opened)


def parse_due(text: str, zone: str, *, opens: bool = False) -> tuple[str, str]:
    """Parse `01=2030-01-31 23:59` as a lab's slug and the time in UTC. A time with an offset of its own keeps it. If
    the lab `opens` then, a date alone means the beginning of that day, or else its end.

    Raises LabError: there is no such lab or no such time (see `read_time`).
    """
    what = "opening" if opens else "due date"
    name, separator, when = text.partition("=")
    if not separator:
        raise LabError(f"the {what} {text!r} is not a time of a lab; expected LAB=YYYY-MM-DD HH:MM")
    return find_lab(name).slug, read_time(when, zone, f"the {what} of {name.strip()},", begins=opens).isoformat()


def load(root: Path | None = None) -> Settings:
    """Return the settings of the class, or the defaults if there are none. Raises LabError if the file is damaged."""
    path = class_folder(root) / "settings.json"
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        late = LatePolicy(**data.pop("late"))
        settings = Settings(late=late, **{**data, "released": tuple(data["released"])})
        for slug in (*settings.due, *settings.opened):
            settings.due_date(slug)
            settings.opening(slug)
        return settings
    except FileNotFoundError:
        return Settings()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LabError(f"{path} is damaged ({error!r}); run `threeloops class init` again") from None


def save(settings: Settings, root: Path | None = None) -> None:
    folder = class_folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / "settings.json", json.dumps(asdict(settings), indent=1) + "\n")
