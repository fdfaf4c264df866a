"""Make a recording: run a launcher, execute no kernel, and note what it allocates, copies, sums and launches.

This runs where the launcher lives, which behind the grading wall is the student's own process. The recording is
therefore only a claim: `reader` checks it, and the values that it computes are judged. The refusals here are for honest
authors, who learn which operation of PyTorch a kernel has to replace. The inputs are zeros shaped like the real ones,
because nothing may depend on values.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from msgspec.structs import replace
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from threeloops.inner import launches
from threeloops.inner.launches.binding import TRITON_TO_TORCH
from threeloops.inner.replay.ledger import FOREIGN, Ledger, identity, tensors
from threeloops.inner.replay.recordings.steps import (
    OPTIONS,
    Descriptor,
    LaunchStep,
    Recording,
    RecordingRefused,
    TritonDtype,
)

__all__ = ["record"]

_ALLOCATIONS = {
    "aten::empty": None, "aten::empty_like": None, "aten::empty_strided": None, "aten::new_empty": None,
    "aten::new_empty_strided": None, "aten::empty_permuted": None,
    "aten::zeros": 0, "aten::zeros_like": 0, "aten::new_zeros": 0,
    "aten::ones": 1, "aten::ones_like": 1, "aten::new_ones": 1,
    "aten::full": "fill_value", "aten::full_like": "fill_value", "aten::new_full": "fill_value",
}  # fmt: skip
"""The contents of the new tensor after each: none, a number, or the argument of that name."""

_READS = ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero", "aten::allclose")
_METHODS = ("item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__dlpack__")
_WHY = "a launcher decides by shapes and dtypes alone, because it has to work before the values are there"


def record(launcher: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Recording:
    """Record `launcher(*args, **kwargs)`. Storages are numbered in the order of the tensors in its arguments.

    Raises:
        RecordingRefused: the launcher reads values, computes with torch, or returns anything but tensors of its own.
        Exception: the launcher raised it.
    """
    ledger = Ledger(tensors([args, kwargs]))
    with ExitStack() as stack:
        observed = launches.observe(_Launches(ledger))
        for context in (
            torch.no_grad(),
            launches.record(execute=False),
            observed,
            _Values(ledger),
            _Operations(ledger),
        ):
            stack.enter_context(context)
        returned = launcher(*args, **kwargs)
    if ledger.refusal:
        raise RecordingRefused(ledger.refusal)
    return Recording(tuple(ledger.steps), _outputs(ledger, returned))


def _outputs(ledger: Ledger, returned: Any) -> Any:
    """Return the launcher's results, as views."""
    if isinstance(returned, torch.Tensor):
        return ledger.view(returned, "returns")
    if isinstance(returned, tuple | list):
        return tuple(_outputs(ledger, output) for output in returned)
    if returned is None:
        return None
    raise RecordingRefused(f"returns a {type(returned).__name__}: expected a tensor or a tuple of tensors")


class _Values(TorchFunctionMode):
    """Refuses methods that turn a tensor into Python values without going through the dispatcher."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _METHODS and getattr(torch.Tensor, name, None) is func:
            self.ledger.refuse(f"reads values of a tensor by {name.strip('_')}(): {_WHY}")
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    """Sees every torch operation."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        ledger = self.ledger
        if name in _READS:
            ledger.refuse(f"reads values of a tensor (item(), bool(), a comparison in an if, {_word(func)}): {_WHY}")
        if any(map(ledger.is_input, _written(func, args, kwargs))):
            ledger.refuse(
                f"changes its input in place with torch ({_word(func)}): write into a tensor that the launcher "
                "allocates; a kernel may change an input"
            )
        result = func(*args, **kwargs)
        new = ledger.is_new(result)
        match name:
            case _ if name in _ALLOCATIONS and new:
                ledger.allocate(result)
                value = _ALLOCATIONS[name]
                value = _argument(func, args, kwargs, value) if isinstance(value, str) else value
                if value is not None:
                    ledger.fill(result, value, _word(func))
            case "aten::clone" | "aten::_to_copy" if new:
                ledger.new_copy(result, args[0])
            case "aten::copy_":
                ledger.copy(result, args[1])
            case "aten::fill_":
                ledger.fill(result, args[1], _word(func))
            case "aten::zero_":
                ledger.fill(result, 0, _word(func))
            case "aten::sum" if new:
                dimensions = _argument(func, args, kwargs, "dim")
                ledger.sum(result, args[0], dimensions, bool(_argument(func, args, kwargs, "keepdim")))
            case "aten::arange" if new:
                ledger.count(result, *(_argument(func, args, kwargs, name) for name in ("start", "step")))
            case _:
                self._other(func, args, kwargs, result)
        return result

    def _other(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note any other operation. Views share known storages. No other tensor that torch wrote may reach a kernel or
        the result."""
        for tensor in _written(func, args, kwargs):
            if self.ledger.knows(tensor):
                self.ledger.taint(tensor, _word(func))
        given = {identity(tensor) for tensor in tensors(list(args))}
        for tensor in tensors([result]):
            if not self.ledger.knows(tensor):
                self.ledger.taint(tensor, FOREIGN if identity(tensor) in given else _word(func))


class _Launches:
    """Records launches, after autotuning, under the names of the kernels' functions."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def before(self, launch: launches.Launch, arguments: Mapping[str, Any]) -> None:
        given = {name: self._value(launch.name, arguments[name]) for name in launch.arguments}
        constants = {name: self._constant(launch.name, name, value) for name, value in launch.constants.items()}
        options = {name: int(value) for name, value in launch.options.items() if name in OPTIONS and value}
        self.ledger.steps.append(LaunchStep(launch.name, launch.grid, given, constants, options))

    def after(self, launch: launches.Launch) -> None:
        """Do nothing, since nothing was executed."""

    def _value(self, kernel: str, value: Any) -> Any:
        verb = f"gives {kernel}"
        if hasattr(value, "block_shape"):
            shape, strides, block = (
                tuple(map(int, numbers)) for numbers in (value.shape, value.strides, value.block_shape)
            )
            base = self.ledger.view(value.base, verb)
            return Descriptor(base, shape, strides, block, getattr(value, "padding", "zero"))
        if isinstance(value, torch.Tensor):
            return self.ledger.view(value, verb)
        if isinstance(getattr(value, "base", None), torch.Tensor):
            seen_as = TRITON_TO_TORCH.get(value.dtype.name, value.dtype.name)  # triton.reinterpret
            return replace(self.ledger.view(value.base, verb), dtype=seen_as)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return int(value) if isinstance(value, int) else float(value)
        return self.ledger.refuse(
            f"{verb} a {type(value).__name__}: a replayed kernel takes tensors, descriptors and numbers"
        )

    def _constant(self, kernel: str, name: str, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, tuple | list):
            return tuple(self._constant(kernel, name, member) for member in value)
        if type(value).__name__ == "dtype" and hasattr(value, "primitive_bitwidth"):
            return TritonDtype(value.name)
        return self.ledger.refuse(
            f"gives {kernel} a {type(value).__name__} as {name}: a constant is a number, a text, a dtype or a tuple"
        )


def _word(func: Any) -> str:
    return "torch." + func._schema.name.removeprefix("aten::").lstrip("_")


def _argument(func: Any, args: Any, kwargs: Any, name: str) -> Any:
    """Return an operation's argument by name, or None if it was not given."""
    if name in kwargs:
        return kwargs[name]
    names = [argument.name for argument in func._schema.arguments]
    place = names.index(name) if name in names else len(args)
    return args[place] if place < len(args) else None


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the tensors that the operation's schema says it writes."""
    written = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += tensors([args[place] if place < len(args) else kwargs.get(argument.name)])
    return written
