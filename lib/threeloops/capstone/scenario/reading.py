"""Read scenarios and prices from TOML files. An error names the file, key, value, what was expected, and what to do."""

import json
import tomllib
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from threeloops.capstone.scenario.prices import Prices
from threeloops.capstone.scenario.sections import Scenario

__all__ = ["ScenarioError", "examples", "read_prices", "read_scenario", "scenario_from"]

_T = TypeVar("_T", Scenario, Prices)
_UNKNOWN = "unexpected_keyword_argument"


class ScenarioError(ValueError):
    """A scenario or a table of prices cannot be used. The message names the key, and what to write instead."""


def examples() -> tuple[str, ...]:
    """Names of the scenarios that come with the library."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in _EXAMPLES.iterdir() if file.name.endswith(".toml")))


_EXAMPLES = files("threeloops.capstone") / "examples"


def read_scenario(source: str | Path) -> Scenario:
    """Read the scenario in a file, or the example of this name if there is no such file."""
    if isinstance(source, str) and source in examples() and not Path(source).exists():
        return scenario_from((_EXAMPLES / f"{source}.toml").read_bytes(), f"{source}.toml")
    path = Path(source)
    if not path.exists():
        close = get_close_matches(path.stem, examples(), n=1, cutoff=0.3)
        hint = f"did you mean the example {close[0]!r}? " if close else ""
        raise ScenarioError(
            f"{path}: no such file, and no example of this name; {hint}`threeloops plan --list` names the examples"
        )
    return scenario_from(_bytes(path), str(path))


def read_prices(path: str | Path | None = None) -> Prices:
    """A table of prices: the library's own, or a file with the same rows."""
    if path is None:
        return _checked(Prices, (files("threeloops.capstone.scenario") / "prices.toml").read_bytes(), "prices.toml")
    return _checked(Prices, _bytes(Path(path)), str(path))


def scenario_from(content: bytes, name: str) -> Scenario:
    """The scenario in a TOML document; `name` stands for the file in errors."""
    return _checked(Scenario, content, name)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror or error}; expected a readable TOML file") from None


def _checked(kind: type[_T], content: bytes, name: str) -> _T:
    try:
        document = tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{name}: byte {error.start} is not UTF-8; expected a TOML file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{name}: not TOML: {error}; numbers are written without units, text in quotes") from None
    try:
        return TypeAdapter(kind).validate_json(json.dumps(document, default=str))
    except ValidationError as error:
        # A misspelt name comes first: it is why another one is missing.
        first = min(error.errors(include_url=False), key=lambda detail: detail["type"] != _UNKNOWN)
        more = f" ({error.error_count() - 1} more after this one)" if error.error_count() > 1 else ""
        raise ScenarioError(f"{name}: {_sentence(kind, dict(first))}{more}") from None


def _sentence(kind: type, error: dict[str, Any]) -> str:
    """Describe the first error that pydantic found."""
    place = [str(part) for part in error["loc"]]
    key = ".".join(place)
    message = error["msg"][:1].lower() + error["msg"][1:]
    if error["type"] == _UNKNOWN:
        names = _names(kind, place[:-1])
        close = get_close_matches(place[-1], names, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"{key}: unknown key; {hint}expected one of {', '.join(names)}"
    if error["type"] in ("missing", "missing_argument"):
        what = "section" if len(place) == 1 and place[0] in ("model", "cluster") else "key"
        return f"{key}: this {what} is missing; add it"
    if error["type"] == "dataclass_type":
        return f"{key} = {error['input']!r}: expected a section, [{key}]"
    if error["type"] == "value_error":  # ours, which names the key itself
        text = str(error["ctx"]["error"])
        return f"[{key}] {text}" if key else text
    return (
        f"{key} = {_shown(error['input'])}: {message.replace('input should be', 'expected').replace('input', 'this')}"
    )


def _names(kind: type, place: list[str]) -> list[str]:
    """Keys of the section at this place."""
    for part in place:
        if part.isdigit():
            continue
        annotation = kind.__dataclass_fields__[part].type  # type: ignore[attr-defined]
        kind = next(member for member in _types(annotation) if hasattr(member, "__dataclass_fields__"))
    return list(kind.__dataclass_fields__)  # type: ignore[attr-defined]


def _types(annotation: Any) -> list[Any]:
    inner = getattr(annotation, "__args__", ())
    return [annotation, *(member for part in inner for member in _types(part))]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
