"""Running an autotuned kernel with every configuration, each from the same memory.

An autotuner runs its configurations on the arguments of the first call, many times. A kernel that adds to its output
then adds to it many times, unless the autotuner zeroes the output (`reset_to_zero`) or restores it (`restore_value`).
`accumulates` finds such arguments: it runs the kernel as the autotuner would, and again without comparing
configurations.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["BENCHMARKING", "Configurations", "EveryConfiguration", "TRIAL", "checked"]

Configurations = Literal["chosen", "all"]

BENCHMARKING = ContextVar("benchmarking", default=False)
"""Whether an autotuner is comparing configurations, in this thread."""


@dataclass(frozen=True)
class _Trial:
    """The configuration of an autotuned kernel that runs. `chosen` says that it is the autotuner's own choice.
    `rehearsal` says that it runs only to find out what `accumulates`: the arguments that differ from their values had
    the autotuner compared nothing."""

    configuration: str
    chosen: bool = False
    rehearsal: bool = False
    accumulates: tuple[str, ...] = ()


TRIAL: ContextVar[_Trial | None] = ContextVar("trial", default=None)


def checked(configs: Configurations) -> Configurations:
    if configs not in ("chosen", "all"):
        raise ValueError(f'configs = {configs!r}: expected "chosen" or "all"')
    return configs


class EveryConfiguration:
    """Stands in for the kernel of an autotuner that called `run(*args, **kwargs)` itself.

    When the autotuner runs the kernel with the configuration of its choice, this runs it with all others first, and
    puts the memory back after each. Configurations that the autotuner prunes are left out.
    """

    def __init__(self, tuner: Any, args: tuple, kwargs: dict[str, Any], *, execute: bool) -> None:
        self._tuner = tuner
        self._kernel = tuner.fn
        self._args = args
        self._kwargs = kwargs
        self._execute = execute

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def run(self, *args: Any, **options: Any) -> Any:
        if BENCHMARKING.get():
            return self._kernel.run(*args, **options)
        chosen = self._tuner.best_config
        configurations = self._tuner.prune_configs(self._kwargs)
        with self._memory_kept():
            accumulates = self._accumulates(chosen) if self._execute and len(configurations) > 1 else ()
        for configuration in configurations:
            if configuration != chosen:
                with self._memory_kept():
                    self._run(configuration, _Trial(_name(configuration)))
        return self._run(chosen, _Trial(_name(chosen), chosen=True, accumulates=accumulates))

    def _run(self, configuration: Any, trial: _Trial) -> Any:
        token = TRIAL.set(trial)
        try:
            if configuration.pre_hook is not None:
                configuration.pre_hook(self._arguments(configuration))
            return self._kernel.run(*self._args, **self._kwargs, **configuration.all_kwargs())
        except Exception as error:
            error.add_note(f"in the configuration {_name(configuration)}")
            raise
        finally:
            TRIAL.reset(token)

    def _accumulates(self, configuration: Any) -> tuple[str, ...]:
        tuner = self._tuner
        arguments = self._arguments(configuration)
        rehearsal = _Trial(_name(configuration), rehearsal=True)
        with _unseen():
            tuner.pre_hook(arguments, reset_only=True)
        before = self._contents()
        self._run(configuration, rehearsal)
        once = self._contents()
        self._put_back(before)
        with _unseen():
            tuner.pre_hook(arguments)
        self._run(configuration, rehearsal)
        with _unseen():
            tuner.post_hook(arguments, exception=None)
            tuner.pre_hook(arguments, reset_only=True)
        self._run(configuration, rehearsal)
        again = self._contents()
        changed = {storage for storage, content in once.items() if not content.equal(again[storage])}
        return tuple(name for name, tensor in self._tensors() if tensor.untyped_storage().data_ptr() in changed)

    def _arguments(self, configuration: Any) -> dict[str, Any]:
        return {**self._tuner.nargs, **self._kwargs, **configuration.all_kwargs()}

    def _tensors(self) -> list[tuple[str, Any]]:
        given = {**self._tuner.nargs, **self._kwargs}
        return [pair for name, value in given.items() for pair in _tensors_in(name, value)]

    def _contents(self) -> dict[int, Any]:
        """Return a copy of every storage among the arguments, by address."""
        with _unseen():
            return {address: flat.clone() for address, flat in self._flat().items()}

    def _put_back(self, contents: dict[int, Any]) -> None:
        with _unseen():
            for address, flat in self._flat().items():
                flat.copy_(contents[address])

    def _flat(self) -> dict[int, Any]:
        import torch

        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for _, tensor in self._tensors()}
        return {
            address: torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            for address, storage in storages.items()
        }

    @contextmanager
    def _memory_kept(self) -> Iterator[None]:
        if not self._execute:
            yield
            return
        before = self._contents()
        try:
            yield
        finally:
            self._put_back(before)


def _unseen() -> Any:
    """Hide changes of memory that will be undone from modes that watch torch's operations."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def _tensors_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple):
        for place, member in enumerate(value):
            yield from _tensors_in(f"{name}[{place}]", member)
    elif hasattr(value, "data_ptr"):
        yield name, value.base if hasattr(value, "base") else value
    elif hasattr(value, "block_shape"):
        yield name, value.base


def _name(configuration: Any) -> str:
    """Return text such as `BLOCK=64, num_warps=4, num_stages=3`."""
    options = configuration.all_kwargs()
    if options.get("num_ctas") == 1:
        del options["num_ctas"]
    return ", ".join(f"{name}={value}" for name, value in options.items())
