"""Small Triton kernels in the shapes of public code, and the registry that says what each one computes and moves.

A case is a function that launches a kernel on small inputs. It returns two tensors or tuples of tensors: the
kernel's results, and those of torch in float64. A broken kernel may return nothing. The docstring is the idea that a
case stands for. The bytes in its entry were counted by hand from the algorithm, never read from the meter.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import threeloops.inner.meter  # noqa: F401 (switches on the interpreter before any kernel is decorated)

__all__ = ["FP16", "FP32", "INT32", "INT64", "Case", "case", "every_case"]

FP16, FP32, INT32, INT64 = 2, 4, 4, 8
"""Bytes per element, for the formulas."""


@dataclass(frozen=True)
class Case:
    """One kernel with its inputs, and what is known about it."""

    launch: Callable[[], tuple[Any, Any]]
    loaded: int
    """Bytes of distinct addresses that the launches load. An atomic operation loads and stores its address."""
    stored: int
    tolerance: float = 0.0
    """The largest difference from float64, relative to numbers above 1. With 0 the values must be equal."""
    faults: tuple[str, ...] = ()
    """The kinds of findings that the meter reports, if the kernel is a broken one."""
    until: str = ""
    """The last release of Triton that has what the kernel uses; empty if all have it."""
    compiles_slowly: bool = False
    """Whether compiling takes more than a fraction of a second, so that only `make test-all` does it."""

    @property
    def name(self) -> str:
        return self.launch.__name__

    @property
    def idea(self) -> str:
        return " ".join((self.launch.__doc__ or "").split())


_cases: list[Case] = []


def case(loaded: int, stored: int, tolerance: float = 0.0, **known: Any) -> Callable[[Callable], Callable]:
    """Register a function as a case; the other fields of `Case` are given by name."""

    def register(launch: Callable) -> Callable:
        _cases.append(Case(launch, loaded, stored, tolerance, **known))
        return launch

    return register


def every_case() -> list[Case]:
    """All cases, module by module, in the order in which they are written."""
    for module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        if not module.startswith("test_"):
            importlib.import_module(f"{__name__}.{module}")
    return list(_cases)
