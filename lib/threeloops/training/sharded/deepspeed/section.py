"""Take values from one object of a configuration, with their types and ranges checked."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from threeloops.training.sharded.deepspeed.keys import FEATURES, ONLY_DEFAULT, WITHOUT_EFFECT

__all__ = ["REQUIRED", "DeepSpeedConfigError", "Reading", "Section"]

REQUIRED: Any = object()
"""The default of a key that must be given."""

_WORDS = {
    bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list", tuple: "a list",
    dict: "an object",
}  # fmt: skip
_LARGEST = 1e300
"""Numbers may be infinite, or too large for a float."""


class DeepSpeedConfigError(ValueError):
    """A configuration that cannot be followed; the message names the key."""


@dataclass
class Reading:
    """State that all sections of one configuration share."""

    auto: Mapping[str, Any]
    """Values for keys that are "auto", by their dotted names."""
    without_value: list[str]
    """Keys that are "auto" and have no value in `auto`, but need one."""
    notes: list[str] = field(default_factory=list)


class Section:
    """One object of the configuration. `end` notes or refuses the keys that were not taken.

    Args:
        name: the dotted name of the section; empty for the whole configuration.
    """

    def __init__(self, name: str, values: Mapping[str, Any], reading: Reading) -> None:
        self.name = name
        self._prefix = f"{name}." if name else ""
        self._unread = dict(values)
        self._reading = reading
        self._taken = set[str]()

    @classmethod
    def whole(cls, config: Mapping[str, Any], auto: Mapping[str, Any]) -> "Section":
        """The section of all top-level keys."""
        without_value = [name for name in _autos("", config) if name not in auto and name not in WITHOUT_EFFECT]
        return cls("", config, Reading(auto, without_value))

    @property
    def notes(self) -> list[str]:
        return self._reading.notes

    def note(self, name: str, text: str) -> None:
        self.notes.append(f"{self._prefix}{name}{text}")

    def refusal(self, name: str, value: Any, expected: str) -> DeepSpeedConfigError:
        return DeepSpeedConfigError(f"{self._prefix}{name} = {_shown(value)}: {expected}")

    def has(self, name: str) -> bool:
        """Whether the key is given. null counts as left out."""
        return self._unread.get(name) is not None

    def is_open(self, name: str) -> bool:
        """Whether the key is "auto", without a value to put in its place."""
        return self._prefix + name in self._reading.without_value

    def leave_out(self, name: str) -> None:
        """Leave out a key that is open, because its value follows from others."""
        if self.is_open(name):
            del self._unread[name]
            self._reading.without_value.remove(self._prefix + name)

    def near(self, name: str) -> str:
        """A hint at a key that may be a misspelling of this one, or nothing."""
        matches = get_close_matches(name, map(str, self._unread), 1, cutoff=0.8)
        return f". Is {self._prefix}{matches[0]} a misspelling of it?" if matches else ""

    def take(self, name: str, default: Any, *types: type) -> Any:
        """The value of a key, of one of these types."""
        self._taken.add(name)
        value = self._filled(self._prefix + name, self._unread.pop(name, None))
        if value is None:
            if default is REQUIRED:
                raise DeepSpeedConfigError(f"{self._prefix}{name} is missing{self.near(name)}")
            return default
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            expected = " or ".join(dict.fromkeys(_WORDS[kind] for kind in types))
            quoted = isinstance(value, str) and {bool, int} & set(types)
            raise self.refusal(name, value, f"expected {expected}{', without quotes' if quoted else ''}")
        return value

    def number(self, name: str, default: Any, least: float = 0, most: float = math.inf) -> float:
        value = self.take(name, default, int, float)
        if not least <= value <= min(most, _LARGEST):
            raise self.refusal(name, value, f"expected a number, {_limits(least, most)}")
        return float(value)

    def count(self, name: str, default: Any, least: int = 1, most: float = math.inf) -> int:
        """A whole number, which JSON may write as 5e8."""
        value = self.take(name, default, int, float)
        if not least <= value <= min(most, _LARGEST) or value != int(value):
            raise self.refusal(name, value, f"expected a whole number, {_limits(least, most)}")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value: bool = self.take(name, default, bool)
        return value

    def choose(self, name: str, default: Any, choices: tuple[Any, ...]) -> Any:
        """One of the choices. Strings are compared without case, as DeepSpeed does, and 2.0 is 2."""
        value = self.take(name, default, bool, int, float, str, list, dict)
        for choice in choices:
            alike = isinstance(value, str) and isinstance(choice, str) and value.lower() == choice.lower()
            if alike or (value == choice and not isinstance(value, bool)):
                return choice
        raise self.refusal(name, value, f"expected one of {', '.join(map(_shown, choices))}")

    def section(self, name: str) -> "Section":
        return self.inside(name, self.take(name, {}, dict))

    def inside(self, name: str, values: Mapping[str, Any]) -> "Section":
        """Return a section with these values instead of those of the configuration."""
        return Section(f"{self._prefix}{name}", values, self._reading)

    def end(self, off: bool = False) -> None:
        """Note or refuse the keys that are left. In a section that is switched `off`, known keys have no effect."""
        for name, value in self._unread.items():
            full = f"{self._prefix}{name}"
            if value is None:
                continue
            if full in WITHOUT_EFFECT:
                self.note(name, f" has no effect: {WITHOUT_EFFECT[full]}")
            elif full in ONLY_DEFAULT and off:
                self.note(name, " has no effect: the section is switched off")
            elif full in ONLY_DEFAULT:
                default, why = ONLY_DEFAULT[full]
                value = self._filled(full, value)
                if value != default or isinstance(value, bool) != isinstance(default, bool):
                    raise self.refusal(name, value, why)
                self.note(name, " has DeepSpeed's default")
            elif full in FEATURES:
                if self._is_on(full, value):
                    raise DeepSpeedConfigError(f"{full} is switched on: {FEATURES[full]}")
                self.note(name, " is switched off")
            elif str(name).lower().startswith(("_", "#", "//", "comment")):
                self.note(name, " is taken for a comment")
            else:
                raise DeepSpeedConfigError(
                    f"{full} is not known here. {self._meant(str(name))}Remove it if training does not depend on it"
                )

    def _meant(self, name: str) -> str:
        tables = (*WITHOUT_EFFECT, *ONLY_DEFAULT, *FEATURES)
        names = {key.removeprefix(self._prefix) for key in tables if key.startswith(self._prefix)} | self._taken
        near = get_close_matches(name, [key for key in names if "." not in key], 1, cutoff=0.8)
        return f"Is {near[0]} meant? " if near else ""

    def _is_on(self, full: str, value: Any) -> bool:
        """Whether a feature is switched on: by its own `enabled`, or else by one inside it, or else by being there."""
        if not isinstance(value, Mapping):
            return bool(self._filled(full, value))
        switches = {"enabled": value["enabled"]} if "enabled" in value else _switches(value)
        states = [self._filled(f"{full}.{name}", switch) for name, switch in switches.items()]
        return any(states) if states else bool(value)

    def _filled(self, full: str, value: Any) -> Any:
        """The value, or for "auto" the one that was given in its place."""
        if not isinstance(value, str) or value != "auto":
            return value
        if full in self._reading.auto:
            return self._reading.auto[full]
        missing = dict.fromkeys([full, *self._reading.without_value])
        values = ", ".join(f'"{name}": …' for name in missing)
        raise DeepSpeedConfigError(
            f'{full} = "auto", which the Hugging Face Trainer replaces with an argument of its own: pass the values as '
            f"auto={{{values}}}, or write them into the configuration"
        )


def _autos(full: str, value: Any) -> Iterator[str]:
    """The dotted names of all keys that are "auto", without those inside a section that has no effect."""
    if isinstance(value, str) and value == "auto":
        yield full
    elif isinstance(value, Mapping) and full not in WITHOUT_EFFECT:
        for key, inner in value.items():
            yield from _autos(f"{full}.{key}" if full else str(key), inner)


def _switches(values: Mapping[str, Any]) -> dict[str, Any]:
    """Every `enabled` inside an object, by its dotted name."""
    switches = {"enabled": values["enabled"]} if "enabled" in values else {}
    for key, inner in values.items():
        if isinstance(inner, Mapping):
            switches |= {f"{key}.{name}": switch for name, switch in _switches(inner).items()}
    return switches


def _limits(least: float, most: float) -> str:
    return f"{least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"


def _shown(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
