"""What a program launches: every Triton kernel launch inside a block, as it happens, whoever wrote the kernel.

    with record() as launches:
        softmax(x)
    print(launches[0].name, launches[0].grid, launches[0].constants)

Interpreted or compiled, called by position or by name, beneath autotuners and heuristics: recorded is the launch that
reaches the kernel, with all its constants. Launches with which an autotuner compares configurations run unseen,
`warmup` is no launch, and kernels of torch.compile go another way. Without a recording nothing of Triton is touched.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from threeloops.inner.launches.binding import Call, Storages, bind, describe
from threeloops.inner.launches.record import Argument, DescriptorArgument, FunctionName, Launch, TensorArgument

__all__ = [
    "Argument",
    "DescriptorArgument",
    "FunctionName",
    "Launch",
    "Observer",
    "TensorArgument",
    "observe",
    "record",
]


class Observer(Protocol):
    """Told of every launch. `arguments` are all the kernel's parameters by name, as they were passed."""

    def before(self, launch: Launch, arguments: dict[str, Any]) -> None: ...

    def after(self, launch: Launch) -> None:
        """Called once for every `before` that returned, also when the kernel raised."""


@contextmanager
def record(*, execute: bool = True) -> Iterator[list[Launch]]:
    """Record the launches inside the block, in order, in the list that it yields.

    With `execute=False` no kernel runs, in any thread, and tensors may be on the "meta" device, of any size; an
    autotuner takes its first configuration, unless it has compared them before. Such launches are no launches of the
    program: recordings and observers that are open around the block do not see them, those inside it do.

    Recordings may be nested. All threads are recorded, because on a GPU gradients are computed in threads of their own;
    one launch at a time where kernels are interpreted. Raises TypeError or ValueError, naming kernel and argument, at a
    launch that lacks an argument, has one too many or one that no compiled kernel takes.
    """
    launches: list[Launch] = []
    with _listening(_Listener(launches=launches, execute=execute)):
        yield launches


@contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Tell `observer` of every launch inside the block, before and after."""
    with _listening(_Listener(observer=observer)):
        yield


@dataclass(eq=False)
class _Listener:
    launches: list[Launch] | None = None
    observer: Observer | None = None
    execute: bool = True
    storages: Storages = field(default_factory=Storages)


class _Benchmarking(threading.local):
    depth = 0


class _Hooks:
    """The listeners, outermost first, and what stands in Triton's classes while there are any."""

    def __init__(self) -> None:
        self.listeners: tuple[_Listener, ...] = ()
        self.lock = threading.Lock()
        self.undo = ExitStack()
        self.benchmarking = _Benchmarking()

    def add(self, listener: _Listener) -> None:
        with self.lock:
            if not self.listeners:
                with ExitStack() as undo:
                    self.install(undo)
                    self.undo = undo.pop_all()
            self.listeners += (listener,)

    def remove(self, listener: _Listener) -> None:
        with self.lock:
            self.listeners = tuple(each for each in self.listeners if each is not listener)
            if not self.listeners:
                self.undo.close()

    def install(self, undo: ExitStack) -> None:
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction

        for owner, name, wrap in (
            (JITFunction, "run", launching),
            (InterpretedFunction, "run", launching),
            (Autotuner, "run", choosing),
            (Autotuner, "_bench", benchmarking),
        ):
            original = getattr(owner, name)
            setattr(owner, name, wrap(original))
            undo.callback(setattr, owner, name, original)

    def concerned(self) -> tuple[_Listener, ...]:
        """Who hears of a launch now: all, or those in the innermost block that executes nothing."""
        dry = [i for i, listener in enumerate(self.listeners) if not listener.execute]
        return self.listeners[dry[-1] :] if dry else self.listeners

    def executes(self) -> bool:
        return all(listener.execute for listener in self.listeners)


_hooks = _Hooks()


@contextmanager
def _listening(listener: _Listener) -> Iterator[None]:
    _hooks.add(listener)
    try:
        yield
    finally:
        _hooks.remove(listener)


def launching(original: Callable) -> Callable:
    """`run` of a kernel."""

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        listeners, executes = _hooks.concerned(), _hooks.executes()
        if warmup or not listeners or _hooks.benchmarking.depth:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        call = bind(self.fn, args, kwargs, grid)
        with ExitStack() as afterwards:
            for listener in listeners:
                announce(listener, describe(call, self, listener.storages), call, afterwards)
            if executes:
                return original(self, *args, grid=call.grid, warmup=False, **kwargs)
        return None

    return run


def announce(listener: _Listener, launch: Launch, call: Call, afterwards: ExitStack) -> None:
    if listener.launches is not None:
        listener.launches.append(launch)
    if listener.observer is not None:
        listener.observer.before(launch, dict(call.given))
        afterwards.callback(listener.observer.after, launch)


def choosing(original: Callable) -> Callable:
    """`run` of an autotuner. What it would choose without having compared anything must not stay in its memory."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _hooks.executes():
            return original(self, *args, **kwargs)
        before = dict(vars(self))
        self.cache = dict(self.cache)
        self.cache_results = False
        self.pre_hook = lambda *_, **__: None  # it zeroes tensors
        try:
            return original(self, *args, **kwargs)
        finally:
            vars(self).clear()
            vars(self).update(before)

    return run


def benchmarking(original: Callable) -> Callable:
    """`_bench` of an autotuner: seconds of one configuration, three quantiles."""

    def bench(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _hooks.executes():
            return [0.0, 0.0, 0.0]
        _hooks.benchmarking.depth += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            _hooks.benchmarking.depth -= 1

    return bench
