"""Import in a lab's warm processes only what the lab's setup cells import.

So a lab without Triton does not pay for its import, and a lab with Triton pays once instead of once per submission.
"""

import importlib
import pkgutil
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from threeloops_grader.transport.tensors import torch_if_imported

__all__ = [
    "COMPILER",
    "RANKS",
    "REPLAY",
    "IdleSteps",
    "compare_once",
    "execute_once",
    "import_all",
    "import_for_ranks",
    "import_pyplot",
    "record_once",
]

COMPILER = "torch._dynamo"
"""The module that the first optimizer of a process imports: 300 modules, in a second."""
RANKS = "threeloops.training.cluster"
"""The module that setup cells import where tests run programs on ranks."""
REPLAY = "threeloops.lab.checking.replay"
"""The module that stands for "the lab's tests replay kernels" in the list of imports."""


def import_all(modules: Sequence[str]) -> None:
    """Import all modules that can be imported. For `from a import b` the list names `a.b`, a module or a name that
    package `a` imports when it is first used. An import that fails here fails again, visibly, in its cell."""
    for module in modules:
        with suppress(Exception):
            pkgutil.resolve_name(module)


def import_for_ranks(modules: Sequence[str]) -> None:
    """Import the modules that ranks may need if their programs use these modules."""
    from threeloops.training.cluster.processes.warm import warm_up

    warm_up(modules)


class IdleSteps:
    """Imports that many submissions use and the first answer does not need, made while no request waits.

    The first two submissions are forked without them, and later ones find them imported. If there is only one
    submission, these imports never happen.
    """

    def __init__(self, *steps: Callable[[], None]) -> None:
        self._left = list(steps)
        self._submissions = 0

    def after_fork(self, control: socket.socket) -> None:
        """Take the next step as long as nothing waits on `control`, from the second forked submission on."""
        self._submissions += 1
        while self._submissions > 1 and self._left and not select.select([control], [], [], 0)[0]:
            self._left.pop(0)()


def import_pyplot() -> None:
    importlib.import_module("matplotlib.pyplot").switch_backend("agg")


def compare_once() -> None:
    """Compare tensors once: torch imports sympy and hundreds of its own modules at the first comparison."""
    if torch := torch_if_imported():
        torch.testing.assert_close(torch.ones(1), torch.ones(1))


def execute_once() -> None:
    """Replay one launch, so that submissions' replays are forked with all their imports."""
    from threeloops.inner.replay.server import warm_up

    warm_up()


def record_once() -> None:
    """Record one launch, so that a student's first replay finds Triton and the recorder imported."""
    from threeloops.inner.replay.server import record_once

    record_once()
