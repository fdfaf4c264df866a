"""One kernel launch as data: all that a compiler or a reader needs to know about it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from types import FunctionType
from typing import Any

__all__ = ["Argument", "DescriptorArgument", "FunctionName", "Launch", "TensorArgument", "is_dtype"]


@dataclass(frozen=True)
class TensorArgument:
    """A tensor. `strides` and `offset` (from the start of its storage) count elements. `storage` is the ordinal of its
    storage within the recording, `alignment` the largest power of two, at most 16, that divides its address."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage: int
    offset: int
    storage_bytes: int
    alignment: int

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "TensorArgument":
        return cls(**{**plain, "shape": tuple(plain["shape"]), "strides": tuple(plain["strides"])})


@dataclass(frozen=True)
class DescriptorArgument:
    """A tensor descriptor (TMA) made on the host: a block of `block_shape` elements of `base`. Reads beyond its edge
    give `padding`, "zero" or "nan"."""

    base: TensorArgument
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]
    padding: str = "zero"

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "DescriptorArgument":
        lists = {name: tuple(plain[name]) for name in ("shape", "strides", "block_shape")}
        return cls(**{**plain, **lists, "base": TensorArgument.from_dict(plain["base"])})


@dataclass(frozen=True)
class FunctionName:
    """The name of a jit function that was a constant, in a launch read from plain data, which cannot hold functions."""

    module: str
    name: str


Argument = TensorArgument | DescriptorArgument | int | float | bool | None | tuple["Argument", ...]


@dataclass(frozen=True)
class Launch:
    """One launch of the kernel `name`, defined in `module` at `line` of `file`.

    `constants` are its tl.constexpr parameters, defaults included: numbers, strings, None, tuples, Triton dtypes or jit
    functions; `arguments` are the others. `options` are num_warps and the like, where given. `kernel` is the jit
    function below autotuners and heuristics; None in a launch read from plain data.

    If all configurations of an autotuned kernel are run, `configuration` names this one, `chosen` says whether it is
    the autotuner's choice, and `accumulates` names arguments of the chosen one that come out differently because the
    autotuner has compared configurations on them. A `rehearsal` is a run to find those; it does not count.
    """

    name: str
    grid: tuple[int, int, int]
    arguments: dict[str, Argument]
    constants: dict[str, Any]
    options: dict[str, Any]
    module: str
    file: str
    line: int
    kernel: Any = field(default=None, compare=False, repr=False)
    configuration: str = field(default="", compare=False)
    chosen: bool = field(default=True, compare=False)
    rehearsal: bool = field(default=False, compare=False)
    accumulates: tuple[str, ...] = field(default=(), compare=False)

    @property
    def title(self) -> str:
        """The name, with the configuration if it matters."""
        return f"{self.name}[{self.configuration}]" if self.configuration else self.name

    @property
    def programs(self) -> int:
        return math.prod(self.grid)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for strict JSON, without `kernel` and the fields after it. Raises TypeError for other
        constants."""
        parts = {
            part: {name: _to_plain(f"{self.name}, {name}", value) for name, value in getattr(self, part).items()}
            for part in ("arguments", "constants", "options")
        }
        where = {"module": self.module, "file": self.file, "line": self.line}
        return {"name": self.name, "grid": list(self.grid), **parts, **where}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Launch":
        """Return the inverse of `to_dict`, but jit functions come back as FunctionName."""
        parts = {
            part: {name: _from_plain(value) for name, value in plain[part].items()}
            for part in ("arguments", "constants", "options")
        }
        return cls(**{**plain, **parts, "grid": tuple(plain["grid"])})


def _to_plain(what: str, value: Any) -> Any:
    """Convert a value to plain data. Numbers, strings and None stay. Anything else becomes an object with one key that
    names its kind."""
    if isinstance(value, TensorArgument | DescriptorArgument):
        kind = "tensor" if isinstance(value, TensorArgument) else "descriptor"
        return {kind: asdict(value)}
    if isinstance(value, tuple | list):
        return {"tuple": [_to_plain(what, member) for member in value]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, FunctionName):
        return {"function": [value.module, value.name]}
    if is_dtype(value):
        return {"dtype": value.name}
    function = getattr(value, "fn", None)
    if isinstance(function, FunctionType):
        return {"function": [function.__module__, function.__qualname__]}
    raise TypeError(
        f"{what} = {value!r}: expected a number, a string, None, a tuple, a Triton dtype or a jit function, "
        "which can be written as JSON"
    )


def _from_plain(plain: Any) -> Any:
    if not isinstance(plain, Mapping):
        return plain
    ((kind, value),) = plain.items()
    return _READ[kind](value)


def is_dtype(value: Any) -> bool:
    """Return whether this is one of Triton's dtypes, without importing Triton."""
    return type(value).__name__ == "dtype" and type(value).__module__.startswith("triton.")


def _read_dtype(name: str) -> Any:
    import triton.language as tl

    return tl.dtype(name)


_READ: dict[str, Callable[[Any], Any]] = {
    "tensor": TensorArgument.from_dict,
    "descriptor": DescriptorArgument.from_dict,
    "tuple": lambda values: tuple(_from_plain(value) for value in values),
    "float": float,
    "function": lambda names: FunctionName(*names),
    "dtype": _read_dtype,
}
