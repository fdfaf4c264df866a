"""All settings of an operator: from a TOML file, the environment and the command line. Later sources win.

    # serve.toml
    model = "tiny"
    port = 8000
    keys_file = "keys.toml"

`THREELOOPS_SERVE_PORT=9000` in the environment overrides `port` of the file, and `--port 9001` overrides both. Every
setting has these three names. Secrets (the password in `redis_url`) appear in no message, repr or log. The command line
must not contain them, because every user of the machine can read it.
"""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, RedisDsn, SecretStr, TypeAdapter, ValidationError, field_validator
from redis.asyncio import ConnectionPool

from threeloops.files import read_toml

__all__ = ["Settings", "SettingsError", "add_flags", "load_settings"]

_PREFIX = "THREELOOPS_SERVE_"
_PLACEHOLDERS: dict[Any, str] = {int: "N", Path | None: "PATH"}
"""The placeholder for a value of each type in the list of flags."""


class SettingsError(ValueError):
    """A setting that cannot be used: its name, its origin, its value, and what was expected."""


class Settings(BaseModel):
    """Whole, valid and fixed: `load_settings` raises SettingsError for anything else."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0 for all of this machine's")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 for one that is free")
    model: str = Field("tiny", min_length=1, description="a model of the course, a folder of weights, or a GGUF file")
    served_model_name: str = Field("", max_length=200, description="what clients call it; by default, its file's name")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto for the GPU if there is one")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="auto for that of the files")
    quantization: Literal["auto", "int8", "int4"] = Field("auto", description="bits of weights; auto for the files'")
    threads: int = Field(0, ge=0, le=1024, description="threads that compute; 0 for as many as torch takes")
    blocks: int = Field(1024, ge=1, description="blocks in the cache of keys and values")
    block_size: int = Field(16, ge=1, le=4096, description="tokens in a block")
    max_running: int = Field(64, ge=1, le=65536, description="requests that are computed together")
    token_budget: int = Field(512, ge=1, description="tokens that a step computes at most")
    max_queued: int = Field(128, ge=0, le=1_000_000, description="requests that wait; more are refused")
    default_max_tokens: int = Field(64, ge=1, description="tokens of an answer if the request names no number")
    largest_max_tokens: int = Field(4096, ge=1, description="tokens of an answer that a request may ask for")
    max_connections: int = Field(1000, ge=1, le=1_000_000, description="open connections; `ulimit -n` may allow fewer")
    load_seconds: float = Field(600.0, gt=0, le=86400, description="time for an engine to load its model")
    step_seconds: float = Field(
        60.0, gt=0, le=86400, description="time for a step; an engine that is silent is replaced"
    )
    request_seconds: float = Field(120.0, gt=0, le=86400, description="time from a request to the end of its answer")
    header_seconds: float = Field(10.0, gt=0, le=3600, description="time for a client to send the head of a request")
    body_seconds: float = Field(30.0, gt=0, le=3600, description="time for a client to send the body of a request")
    body_bytes: int = Field(1 << 20, ge=1, le=1 << 30, description="bytes in the body of a request")
    drain_seconds: float = Field(30.0, ge=0, le=86400, description="time for requests to end after SIGTERM")
    keys_file: Path | None = Field(
        None, description="TOML file of API keys and their limits; without it anybody may ask"
    )
    redis_url: SecretStr | None = Field(None, description="a cache of answers, such as redis://localhost:6379/0")
    cache_seconds: int = Field(3600, ge=1, description="time that an answer stays in that cache")
    registry: Path | None = Field(None, description="folder of model versions; the active one is served")
    log_file: Path | None = Field(None, description="file for a line of JSON per request; by default, stderr")

    @field_validator("redis_url")
    @classmethod
    def _is_a_redis_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            try:
                TypeAdapter(RedisDsn).validate_python(url.get_secret_value())
                ConnectionPool.from_url(url.get_secret_value()).make_connection()  # it connects to nothing yet
            except Exception:  # it has many, and their messages quote the URL
                raise ValueError("expected a URL such as redis://localhost:6379/0") from None
        return url

    @field_validator("model", "served_model_name")
    @classmethod
    def _is_printable(cls, name: str) -> str:
        if not name.isprintable():
            raise ValueError("expected a name without control characters")
        return name

    @property
    def name(self) -> str:
        """The name by which clients call the model."""
        return self.served_model_name or Path(self.model).resolve().name.removesuffix(".gguf")


def load_settings(
    file: Path | None = None, environment: Mapping[str, str] | None = None, given: Mapping[str, Any] | None = None
) -> Settings:
    """Load settings from a TOML file, from `environment` (this process's by default), and from the command line
    (`given`).

    Raises SettingsError for a file that cannot be read, and for an unknown name, a wrong type or a value out of range
    in any of them.
    """
    values: dict[str, Any] = {}
    called: dict[str, str] = {}  # by the name of a setting: what it is called where it was set
    environment = os.environ if environment is None else environment
    for source, prefix, settings in (
        (f"{file}: ", "", _of_file(file)),
        ("", _PREFIX, _of_environment(environment)),
        ("", "--", given or {}),
    ):
        for name, value in settings.items():
            shown = prefix + (name.upper() if prefix == _PREFIX else name.replace("_", "-") if prefix else name)
            if name not in Settings.model_fields:
                names = ", ".join(Settings.model_fields)
                raise SettingsError(f"{source}there is no setting {shown!r}; expected one of {names}")
            values[name], called[name] = _as_python(name, value, is_text=bool(prefix)), source + shown
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        shown = "(not shown)" if _is_secret(name) else repr(values[name])
        problem = str(first["msg"]).removeprefix("Value error, ").replace("Input should be", "expected it to be")
        raise SettingsError(
            f"{called[name]} = {shown}: {problem} ({Settings.model_fields[name].description})"
        ) from None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` a flag for every setting. Values stay text, for `load_settings`."""
    group = parser.add_argument_group(
        "settings", "Each is also a key of the file, with _ for -, as in max_queued = 64."
    )
    for name, field in Settings.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        if _is_secret(name):
            shown = f"{field.description}; only in the file, or as {_PREFIX}{name.upper()}"
            group.add_argument(flag, action=_Refused, help=shown, metavar="…")
            continue
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        kind = "|".join(choices) or _PLACEHOLDERS.get(field.annotation, "TEXT")
        default = f" [{field.default}]" if field.default not in (None, "") else ""
        seconds = name.endswith("_seconds")
        group.add_argument(flag, help=f"{field.description}{default}", metavar="SECONDS" if seconds else kind)


class _Refused(argparse.Action):
    """A flag for a setting that a command line must not contain."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        name = _PREFIX + self.dest.upper()
        parser.error(f"{self.option_strings[0]} may hold a password, which every user could read here: set {name}")


def _is_secret(name: str) -> bool:
    return "SecretStr" in str(Settings.model_fields[name].annotation)


def _of_file(file: Path | None) -> dict[str, Any]:
    return {} if file is None else read_toml(file, "the settings", SettingsError)[1]


def _of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(_PREFIX).lower(): text for name, text in environment.items() if name.startswith(_PREFIX)}


def _as_python(name: str, value: Any, *, is_text: bool) -> Any:
    """A path from its text, as TOML has no paths, and a float from a whole number, as one writes 30 for 30.0.

    If it can only be text, as in the environment and on a command line, a number from its digits. Anything else is left
    for the check.
    """
    kind = Settings.model_fields[name].annotation
    if isinstance(value, str) and kind == Path | None:
        return Path(value)
    if is_text and kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            return value
    return float(value) if kind is float and type(value) is int else value
