"""Bind a kernel call to a Launch: check the call, and tell arguments, constants and compiler options apart."""

import inspect
import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from difflib import get_close_matches
from functools import cache
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from threeloops.inner.launches.launch import Argument, DescriptorArgument, Launch, TensorArgument, is_dtype

__all__ = ["Call", "Signature", "Storages", "TRITON_TO_TORCH", "bind", "describe", "signature_of", "tensor"]

TRITON_TO_TORCH = {
    "int1": "bool",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
    "fp8e4b8": "float8_e4m3fnuz",
    "fp8e5b16": "float8_e5m2fnuz",
}
"""Names of dtypes, for tensors made by triton.reinterpret. torch has no fp8e4b15."""


@dataclass(frozen=True)
class Signature:
    """The place where a kernel's function is defined, and its parameters. `constexprs` are the parameters annotated
    tl.constexpr."""

    name: str
    module: str
    file: str
    line: int
    parameters: inspect.Signature
    constexprs: frozenset[str]


@dataclass(frozen=True)
class Call:
    """One bound call: `given` are all parameters by name, as they were passed; `grid` has one to three sizes."""

    signature: Signature
    given: dict[str, Any]
    options: dict[str, Any]
    grid: tuple[int, ...]


_signatures: "WeakKeyDictionary[FunctionType, Signature]" = WeakKeyDictionary()


def bind(function: FunctionType, args: tuple, kwargs: Mapping[str, Any], grid: Any) -> Call:
    """Check a call of the kernel with this function. Raises TypeError or ValueError naming kernel and argument."""
    signature = signature_of(function)
    names = signature.parameters.parameters
    options = {name: _unwrapped(value) for name, value in kwargs.items() if name not in names}
    for name in options.keys() - _known_options():
        close = get_close_matches(name, [*names, *_known_options()], n=2)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise TypeError(
            f"kernel {signature.name} has no argument, and a launch no option, called {name!r}: {hint}"
            f"its arguments are {', '.join(names)}"
        )
    try:
        bound = signature.parameters.bind(*args, **{name: kwargs[name] for name in kwargs if name in names})
    except TypeError as error:
        raise TypeError(f"kernel {signature.name}: {error}; its arguments are {', '.join(names)}") from None
    bound.apply_defaults()
    given = dict(bound.arguments)
    return Call(signature, given, options, _checked_grid(signature.name, grid(given) if callable(grid) else grid))


def _checked_grid(kernel: str, grid: Any) -> tuple[int, ...]:
    expected = "expected one to three whole numbers of programs, as in kernel[(64,)](…)"
    if not isinstance(grid, tuple | list):
        raise TypeError(f"kernel {kernel}: grid = {grid!r}: {expected}")
    try:
        sizes = tuple(operator.index(_unwrapped(size)) for size in grid)
    except TypeError:
        raise TypeError(f"kernel {kernel}: grid = {grid!r}: {expected}; triton.cdiv(n, block) is one") from None
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise ValueError(f"kernel {kernel}: grid = {grid!r}: {expected}")
    return sizes


def signature_of(function: FunctionType) -> Signature:
    if function not in _signatures:
        parameters = inspect.signature(function)
        annotations = {name: parameter.annotation for name, parameter in parameters.parameters.items()}
        constexprs = frozenset(
            name
            for name, annotation in annotations.items()
            if "constexpr" in str(getattr(annotation, "__name__", annotation))
        )
        file = function.__code__.co_filename
        line = _definition_line(function)
        name = function.__name__
        module = function.__module__
        _signatures[function] = Signature(name, module, file, line, parameters, constexprs)
    return _signatures[function]


def _definition_line(function: FunctionType) -> int:
    """Return the line of `def`, below the decorators."""
    first = function.__code__.co_firstlineno
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError:
        return first
    return first + next((i for i, line in enumerate(lines) if line.lstrip().startswith("def ")), 0)


@cache
def _known_options() -> frozenset[str]:
    """Return the arguments that a launch accepts besides the kernel's own: the options of every compiler backend of
    Triton."""
    from triton.backends import backends

    names = {"debug", "instrumentation_mode", "warmup"}
    for backend in backends.values():
        module = vars(sys.modules[backend.compiler.__module__])
        for member in module.values():
            if isinstance(member, type) and is_dataclass(member):
                fields = {field.name for field in dataclass_fields(member)}
                names |= fields if "num_warps" in fields else set()
    return frozenset(names)


class Storages:
    """Numbers storages in the order in which launches mention them.

    Keeps no tensor alive: the weak reference only keeps the storage's address from being used for a new storage.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Any]] = {}

    def ordinal(self, storage: Any) -> int:
        from torch.multiprocessing.reductions import StorageWeakRef

        if storage._cdata not in self._known:
            self._known[storage._cdata] = len(self._known), StorageWeakRef(storage)
        return self._known[storage._cdata][0]


def describe(call: Call, kernel: Any, storages: Storages) -> Launch:
    """Return the Launch of a call. Raises TypeError naming any argument that a compiled kernel would not take."""
    signature = call.signature
    arguments: dict[str, Argument] = {}
    constants: dict[str, Any] = {}
    for name, value in call.given.items():
        if name in signature.constexprs or _is_constexpr(value) or _is_jit_function(value):
            constants[name] = _unwrapped(value)
        else:
            arguments[name] = _described(signature.name, name, value, storages)
    x, y, z = (*call.grid, 1, 1)[:3]
    return Launch(
        name=signature.name,
        grid=(x, y, z),
        arguments=arguments,
        constants=constants,
        options=call.options,
        module=signature.module,
        file=signature.file,
        line=signature.line,
        kernel=kernel,
    )


def _described(kernel: str, name: str, value: Any, storages: Storages) -> Argument:
    if hasattr(value, "block_shape"):
        base = tensor(value.base, storages)
        shape, strides, block = (
            tuple(map(int, numbers)) for numbers in (value.shape, value.strides, value.block_shape)
        )
        return DescriptorArgument(base, shape, strides, block, getattr(value, "padding", "zero"))
    if hasattr(value, "data_ptr"):
        return tensor(value, storages)
    if isinstance(value, tuple):
        return tuple(_described(kernel, f"{name}[{i}]", _unwrapped(member), storages) for i, member in enumerate(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if is_dtype(value) or isinstance(value, str):
        raise TypeError(f"kernel {kernel}: argument {name} = {value!r}: annotate the parameter, {name}: tl.constexpr")
    wanted = "a tensor, a descriptor, an int, a float, a bool, None or a tuple of them"
    convert = f"; pass {name}.item()" if hasattr(value, "item") else ""
    raise TypeError(f"kernel {kernel}: argument {name} is a {type(value).__name__}: a launch takes {wanted}{convert}")


def tensor(value: Any, storages: Storages) -> TensorArgument:
    """Describe a torch tensor or a result of triton.reinterpret. Storages on the "meta" device start at address 0."""
    base = getattr(value, "base", value)
    storage = base.untyped_storage()
    on_meta = base.device.type == "meta"
    address = base.storage_offset() * base.element_size() if on_meta else base.data_ptr()
    alignment = 16 if address % 16 == 0 else address & -address
    dtype = value.dtype.name if is_dtype(value.dtype) else str(value.dtype).removeprefix("torch.")
    return TensorArgument(
        dtype=TRITON_TO_TORCH.get(dtype, dtype),
        shape=tuple(base.shape),
        strides=tuple(base.stride()),
        storage=storages.ordinal(storage),
        offset=base.storage_offset(),
        storage_bytes=storage.nbytes(),
        alignment=alignment,
    )


def _is_constexpr(value: Any) -> bool:
    return type(value).__name__ == "constexpr" and hasattr(value, "value")


def _is_jit_function(value: Any) -> bool:
    return isinstance(getattr(value, "fn", None), FunctionType)


def _unwrapped(value: Any) -> Any:
    """Return the value of a tl.constexpr, in tuples too."""
    if _is_constexpr(value):
        return _unwrapped(value.value)
    return tuple(map(_unwrapped, value)) if type(value) is tuple else value
