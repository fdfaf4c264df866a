"""Load a configuration as people pass it to DeepSpeed: a dictionary, a file, JSON text, or JSON text in base64."""

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threeloops.training.sharded.deepspeed.section import DeepSpeedConfigError

__all__ = ["load"]


def load(config: Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    """Return the configuration as a mapping of its top-level keys."""
    loaded = _parsed(*_text(config)) if isinstance(config, str | Path) else config
    if not isinstance(loaded, Mapping):
        raise DeepSpeedConfigError(f"the configuration is a {type(loaded).__name__}: expected an object of keys")
    return loaded


def _text(config: str | Path) -> tuple[str, str]:
    """Return the JSON text, and its name for errors."""
    if isinstance(config, str) and config.lstrip().startswith(("{", "[")):
        return config, "the JSON text"
    if isinstance(config, str) and (decoded := _from_base64(config)) is not None:
        return decoded, "the JSON text in base64"
    try:
        return Path(config).read_text("utf-8-sig"), str(config)
    except FileNotFoundError:
        raise DeepSpeedConfigError(
            f"{config}: there is no such file. Expected the path of a JSON file, JSON text, or JSON text in base64"
        ) from None
    except OSError as error:
        raise DeepSpeedConfigError(f"{str(config)[:200]}: expected a JSON file: {error.strerror}") from None
    except ValueError as error:
        raise DeepSpeedConfigError(f"{config}: expected a JSON file: {error}") from None


def _from_base64(text: str) -> str | None:
    try:
        decoded = base64.b64decode(text.translate(str.maketrans("-_", "+/")), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return decoded if decoded.lstrip().startswith("{") else None


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        line = (text.splitlines() or [""])[min(error.lineno, len(text.splitlines())) - 1].strip()
        raise DeepSpeedConfigError(
            f"{name}, line {error.lineno}, {line!r}: {error.msg}. Expected a JSON file, without comments and without a "
            "comma after the last entry"
        ) from None
    except RecursionError:
        raise DeepSpeedConfigError(f"{name}: expected a JSON file, with fewer levels of nesting") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key, _ in pairs:
        if keys.count(key) > 1:
            values = " and ".join(json.dumps(value) for other, value in pairs if other == key)
            raise DeepSpeedConfigError(f"{key} is given {keys.count(key)} times, as {values}: keep one of them")
    return dict(pairs)
