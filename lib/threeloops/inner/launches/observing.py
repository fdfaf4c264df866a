"""Record every Triton kernel launch inside a block, from any author's kernel.

    with record() as launches:
        softmax(x)
    print(launches[0].name, launches[0].grid, launches[0].constants)

Kernels may be interpreted or compiled. The launch that reaches the kernel is recorded, after autotuning and heuristics,
with all its constants. Launches with which an autotuner compares configurations are not recorded, nor are calls with
`warmup`, nor kernels of torch.compile. Triton's classes are patched only during a recording.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from threeloops.inner.launches.binding import Storages, bind, describe
from threeloops.inner.launches.launch import Launch
from threeloops.inner.launches.tuning import BENCHMARKING, TRIAL, Configurations, EveryConfiguration, checked

__all__ = ["Observer", "observe", "record"]


class Observer(Protocol):
    """Called for every launch. `arguments` are all the kernel's parameters by name, as they were passed."""

    def before(self, launch: Launch, arguments: dict[str, Any]) -> None: ...

    def after(self, launch: Launch) -> None:
        """Handle the end of a launch. It is called once for every `before` that returned, even if the kernel raised."""


@contextmanager
def record(*, execute: bool = True, configs: Configurations = "chosen") -> Iterator[list[Launch]]:
    """Record the launches inside the block, in order, in the list that it yields.

    With `execute=False` no kernel runs, in any thread, and tensors may be on the "meta" device, of any size; an
    autotuner takes the configuration that it has found before, or its first. Recordings and observers that are open
    around such a block do not see its launches; those inside it do.

    With `configs="all"` an autotuned kernel is run with every configuration that the autotuner does not prune, each
    from the same memory, and recorded once per configuration: its own choice comes last, and its results stay.

    Recordings may be nested. All threads are recorded, because on a GPU gradients are computed in threads of their own.
    If kernels are interpreted, launches must come one at a time. Raises TypeError or ValueError, naming kernel and
    argument, at a launch that lacks an argument, has one too many or one that no compiled kernel takes.
    """
    recorder = _Recorder()
    every = checked(configs) == "all"
    with _hooks.listening(_Listener(recorder, execute, lambda: every)):
        yield recorder.launches


@contextmanager
def observe(observer: Observer, every_configuration: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Call `observer` before and after every launch inside the block. `every_configuration`: asked at each launch of an
    autotuned kernel whether to run all its configurations, as `record(configs="all")` does."""
    with _hooks.listening(_Listener(observer, every=every_configuration)):
        yield


@dataclass
class _Recorder:
    launches: list[Launch] = field(default_factory=list)

    def before(self, launch: Launch, arguments: dict[str, Any]) -> None:
        if not launch.rehearsal:
            self.launches.append(launch)

    def after(self, launch: Launch) -> None:
        pass


@dataclass(eq=False)
class _Listener:
    observer: Observer
    execute: bool = True
    every: Callable[[], bool] = lambda: False
    storages: Storages = field(default_factory=Storages)


class _Hooks:
    """The listeners, outermost first, and the patches of Triton's classes while there are any."""

    def __init__(self) -> None:
        self.listeners: tuple[_Listener, ...] = ()
        self.lock = threading.Lock()
        self.undo = ExitStack()

    @contextmanager
    def listening(self, listener: _Listener) -> Iterator[None]:
        with self.lock:
            if not self.listeners:
                with ExitStack() as undo:
                    self.install(undo)
                    self.undo = undo.pop_all()
            self.listeners += (listener,)
        try:
            yield
        finally:
            with self.lock:
                self.listeners = tuple(other for other in self.listeners if other is not listener)
                if not self.listeners:
                    self.undo.close()

    def install(self, undo: ExitStack) -> None:
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction

        for owner, name, wrap in (
            (JITFunction, "run", _launching),
            (InterpretedFunction, "run", _launching),
            (Autotuner, "run", _choosing),
            (Autotuner, "_bench", _comparing),
        ):
            original = getattr(owner, name)
            setattr(owner, name, wrap(original))
            undo.callback(setattr, owner, name, original)

    def concerned(self) -> tuple[_Listener, ...]:
        """Return the listeners to call now: all, or those from the innermost block that executes nothing."""
        dry = [i for i, listener in enumerate(self.listeners) if not listener.execute]
        return self.listeners[dry[-1] :] if dry else self.listeners

    def executes(self) -> bool:
        return all(listener.execute for listener in self.listeners)


_hooks = _Hooks()


_one_launch = threading.RLock()
"""Held by the launch that is observed: an observer sees the launches of several threads one after another."""


def _launching(original: Callable) -> Callable:
    """Wrap `run` of a kernel."""

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        listeners = _hooks.concerned()
        executes = _hooks.executes()
        if warmup or not listeners or BENCHMARKING.get():
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        trial = TRIAL.get()
        if trial is not None and not trial.chosen:
            listeners = tuple(listener for listener in listeners if listener.every())
        call = bind(self.fn, args, kwargs, grid)
        with _one_launch, ExitStack() as afterwards:
            for listener in listeners:
                launch = describe(call, self, listener.storages)
                if trial is not None and listener.every():
                    launch = replace(launch, **vars(trial))
                listener.observer.before(launch, dict(call.given))
                afterwards.callback(listener.observer.after, launch)
            if executes:
                return original(self, *args, grid=call.grid, warmup=False, **kwargs)
        return None

    return run


def _choosing(original: Callable) -> Callable:
    """Wrap `run` of an autotuner."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(listener.every() for listener in _hooks.concerned()):
            return choose(self, *args, **kwargs)
        kernel = self.fn
        self.fn = EveryConfiguration(self, args, kwargs, execute=_hooks.executes())
        try:
            return choose(self, *args, **kwargs)
        finally:
            self.fn = kernel

    def choose(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Choose and run. A choice made without comparing anything must not stay in the autotuner's memory."""
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


def _comparing(original: Callable) -> Callable:
    """Wrap `_bench` of an autotuner, which returns three quantiles of one configuration's seconds."""

    def bench(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _hooks.executes():
            return [0.0, 0.0, 0.0]
        token = BENCHMARKING.set(True)
        try:
            return original(self, *args, **kwargs)
        finally:
            BENCHMARKING.reset(token)

    return bench
