"""How the meter takes hold of Triton's interpreter for the duration of one launch.

It replaces methods of the interpreter's builder object (loads, stores, atomics, arithmetic), `apply` of its reductions,
and the conversion of arguments to pointers. Methods are replaced on the builder and not on its class, so that the
replacements call the repaired methods of the class (`interpreter.repairs`).
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from threeloops.inner.launches import signature_of
from threeloops.inner.meter.accesses import tensors
from threeloops.inner.meter.findings import NAN_BYTE, Compiled, Watch
from threeloops.inner.meter.recording import ATOMIC, LOAD, RELAXED_ATOMIC, STORE, Recording, array_of

__all__ = ["recording"]

_ABSENT = object()
_ODD_INTEGER = 91
"""Stands for an unspecified integer: the neutral element of no operation, and too small for sums to overflow."""


@contextmanager
def recording(watch: Watch | None = None) -> Iterator[Recording]:
    """Record the one launch that the block runs."""
    from triton.runtime import interpreter

    from threeloops.inner.interpreter import language

    recorded = Recording(watch)
    with ExitStack() as undo:
        replaced = _Replaced()
        undo.callback(replaced.restore)
        install = replaced.install
        # Masked lanes hold NaN or an odd integer on purpose; silence NumPy's warning about them.
        undo.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "invalid value encountered in cast", RuntimeWarning)
        builder = interpreter.interpreter_builder
        semantic = interpreter.interpreter_semantic
        handle = interpreter.TensorHandle
        executor = interpreter.GridExecutor
        compiled = Compiled(recorded.report_here)
        install(builder, _wrappers(recorded, builder))
        install(builder, compiled.wrappers(builder))
        for operation in (interpreter.ReduceOps, interpreter.ScanOps):
            install(operation, {"apply": recorded.flops.reducing(operation.apply)})
        install(
            handle,
            {
                "undefined": None,
                "__post_init__": recorded.tiles.made(handle.__post_init__),
                "__del__": recorded.tiles.dropped,
                "set_attr": lambda *hint: compiled.hint(*hint),
            },
        )
        install(semantic, {"load": _loading(recorded, semantic.load)})
        install(language, {"number_made": recorded.tiles.number_made})
        install(executor, {"_init_args_hst": _addressed(recorded, executor._init_args_hst)})
        install(interpreter, {"_implicit_cvt": _converted(recorded, interpreter._implicit_cvt)})
        undo.callback(recorded.stop_following)
        yield recorded


class _Replaced:
    """Attributes of classes, modules and instances that are replaced for a while, and their original values."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, dict[str, Any]]] = []

    def install(self, owner: Any, attributes: dict[str, Any]) -> None:
        known = vars(owner)
        self._before.append((owner, {name: known.get(name, _ABSENT) for name in attributes}))
        for name, value in attributes.items():
            setattr(owner, name, value)

    def restore(self) -> None:
        for owner, attributes in reversed(self._before):
            for name, value in attributes.items():
                delattr(owner, name) if value is _ABSENT else setattr(owner, name, value)


def _addressed(recorded: Recording, original: Callable) -> Callable:
    """Wrap the interpreter's copying of arguments to the host, to give every argument its address space."""

    def init_args_hst(executor: Any, args_dev: Any, kwargs: Any) -> Any:
        args_hst, kwargs_hst = original(executor, args_dev, kwargs)
        names = signature_of(executor.fn).parameters.parameters
        given = dict(zip(names, zip(args_dev, args_hst, strict=True), strict=False))
        given |= {name: (value, kwargs_hst[name]) for name, value in kwargs.items()}
        for name in names:
            if name in given and name not in executor.constexprs:
                for argument in tensors(name, *given[name]):
                    recorded.add_argument(*argument)
        return args_hst, kwargs_hst

    return init_args_hst


def _converted(recorded: Recording, original: Callable) -> Callable:
    """Wrap the interpreter's conversion of arguments, to turn tensors into virtual addresses."""

    def implicit_cvt(argument: Any) -> Any:
        result = original(argument)
        if hasattr(argument, "data_ptr") and (space := recorded.spaces.of(argument)):
            result.handle.data = np.array([space.first], dtype=np.uint64)
        return result

    return implicit_cvt


def _loading(recorded: Recording, original: Callable) -> Callable:
    """Wrap `tl.load`, to know whether it was given an `other`: Triton drops one that is a scalar 0."""

    def load(pointer: Any, mask: Any, other: Any, *rest: Any, **options: Any) -> Any:
        recorded.other_given = other is not None
        try:
            return original(pointer, mask, other, *rest, **options)
        finally:
            recorded.other_given = False

    return load


def _idle(pointers: Any, mask: Any) -> np.ndarray | None:
    """Return the lanes that a mask excludes, in the shape of the tile, or None if it excludes none."""
    active = array_of(mask)
    if active is None or np.count_nonzero(active) == active.size:
        return None
    return ~np.broadcast_to(active.astype(bool, copy=False), pointers.data.shape)


def _unspecified(pointers: Any, idle: np.ndarray) -> Any:
    """Make the contents for the idle lanes of a load without `other`.

    On a GPU they are undefined. Here they are NaN or an odd integer, because the interpreter's zeros would hide that a
    kernel relies on zeros.
    """
    element = pointers.get_element_ty()
    if element.is_bool():
        return None
    from triton.runtime.interpreter import _get_np_dtype

    dtype = np.dtype(_get_np_dtype(element))
    nan = np.frombuffer(bytes([NAN_BYTE]) * dtype.itemsize, dtype)[0]
    anything = nan if element.is_floating() else dtype.type(_ODD_INTEGER)
    return type(pointers)(np.where(idle, anything, dtype.type(0)), element)


@cache
def _debugging(options: Any) -> Any:
    """Return options with which Triton checks assertions, which it leaves out otherwise."""
    return replace(options, debug=True)


def _wrappers(recorded: Recording, builder: Any) -> dict[str, Any]:
    """Return the replacements for the builder's methods and options during a launch, by name."""
    from triton._C.libtriton import ir

    relaxed = ir.MEM_SEMANTIC.RELAXED
    load = builder.create_masked_load
    store = builder.create_masked_store
    rmw = builder.create_atomic_rmw
    cas = builder.create_atomic_cas
    set_grid_idx = builder.set_grid_idx
    set_grid_dim = builder.set_grid_dim

    def grid_dim(x: int, y: int, z: int) -> None:
        recorded.grid = (x, y, z)
        set_grid_dim(x, y, z)

    def grid_idx(*place: int) -> None:
        recorded.program += 1
        recorded.tiles.next_program()
        recorded.stop_following()
        set_grid_idx(*place)

    def masked_load(pointers: Any, mask: Any, other: Any, *rest: Any, **options: Any) -> Any:
        since = len(recorded.accesses)
        idle = None if recorded.other_given or other is not None else _idle(pointers, mask)
        if idle is not None:
            other = _unspecified(pointers, idle)
        real, allowed = recorded.access(LOAD, pointers, mask)
        result = load(real, allowed, other, *rest, **options)
        if recorded.undefined:
            recorded.check_defined(since, LOAD, mask, pointers)
            if idle is not None:
                recorded.undefined.mark(result, idle, recorded.site())
        if recorded.unwritten:
            recorded.check_read(since, result.data)
        return result

    def masked_store(pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        since = len(recorded.accesses)
        real, allowed = recorded.access(STORE, pointers, mask, value.data)
        result = store(real, value, allowed, *rest, **options)
        if recorded.undefined:
            recorded.check_defined(since, STORE, mask, pointers, value)
        if recorded.unwritten:
            recorded.check_write(since)
        return result

    def atomic(order: Any, pointers: Any, value: Any, mask: Any, execute: Callable[[Any, Any], Any]) -> Any:
        since = len(recorded.accesses)
        kind = RELAXED_ATOMIC if order == relaxed else ATOMIC
        result = execute(*recorded.access(kind, pointers, mask))
        if recorded.undefined:
            recorded.check_defined(since, kind, mask, pointers, value)
        if recorded.unwritten:
            recorded.check_read(since, result.data)
            recorded.check_write(since)
        return result

    def atomic_rmw(operation: Any, pointers: Any, value: Any, mask: Any, order: Any, scope: Any) -> Any:
        return atomic(
            order, pointers, value, mask, lambda real, allowed: rmw(operation, real, value, allowed, order, scope)
        )

    def atomic_cas(pointers: Any, compare: Any, value: Any, order: Any, scope: Any) -> Any:
        def execute(real: Any, allowed: np.ndarray | None) -> Any:
            if allowed is None:
                return cas(real, compare, value, order, scope)
            # The operation takes no mask, so pass it only the lanes that may run.
            handle = type(real)
            parts = [handle(operand.data[allowed], operand.dtype) for operand in (real, compare, value)]
            result = np.zeros_like(compare.data)
            if allowed.any():
                result[allowed] = cas(*parts, order, scope).data
            return handle(result, compare.dtype)

        return atomic(order, pointers, value, None, execute)

    def check(condition: Any, message: str) -> None:
        recorded.check_assert(condition.data, message)

    return {
        "options": _debugging(builder.options),
        "create_assert": check,
        "set_grid_dim": grid_dim,
        "set_grid_idx": grid_idx,
        "create_masked_load": masked_load,
        "create_masked_store": masked_store,
        "create_atomic_rmw": atomic_rmw,
        "create_atomic_cas": atomic_cas,
        **recorded.flops.wrappers(builder),
    }
