"""`replay(launcher, …)`: judge the kernels of a cell, not the function that launches them.

    run = replay(softmax, x)
    check.close(run.outputs, torch.softmax(x.double(), -1), rtol=1e-5)
    check.true(run.traffic.total.unique_bytes <= 1.05 * 2 * x.nbytes, "softmax moves more than one read and one write")

The launcher is run on zeros and without executing a kernel; what it allocates and launches is noted. Then the kernels
are taken from the text of its cell and launched the same way on the real inputs, in Triton's interpreter under the
traffic meter. A launcher that computes with PyTorch, remembers results or launches nothing gets no result at all. The
same line works in JupyterLab and behind the grading wall, where the launcher lives in another process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from threeloops.lab.checking import wall
from threeloops.lab.checking.failure import CheckFailed

__all__ = ["replay"]

if TYPE_CHECKING:
    from threeloops.inner.codegen.generated_code import Code
    from threeloops.inner.launches import Launch
    from threeloops.inner.meter import L2, Finding, Metered

_SECONDS = 60.0
"""Time limit of one replay where no wall sets another."""

_aside = False
"""Whether kernels are executed in a process of their own even where this one could interpret them."""


@dataclass(frozen=True)
class _Replay:
    """What the kernels of a cell did on the inputs of a test.

    `outputs`: what the launcher returns, a tensor or a tuple of tensors, as the kernels computed it. `traffic`: the
    meter's. `launches`: in order. `torch_bytes`: bytes read and written by the copies, sums and fills that the launcher
    leaves to PyTorch, and that no kernel accounts for.
    """

    outputs: Any
    traffic: Metered
    launches: list[Launch]
    torch_bytes: int
    text: str = field(repr=False)
    name: str = field(repr=False)

    @property
    def findings(self) -> list[Finding]:
        """Findings of the meter that do not fail a replay: reads of memory that nothing wrote, failing assertions, and
        lanes of one store that write different values to one address."""
        return self.traffic.findings

    def code(self, target: str) -> list[Code]:
        """The machine code of every launch, for "sm_80", "sm_90", "sm_100" or "gfx942"; needs no GPU.

        Raises CheckFailed where a kernel does not compile, with the compiler's words and the line of the cell.
        """
        from dataclasses import replace

        from threeloops.inner.codegen import CompileError, compile_launches, from_source

        seconds = _SECONDS if wall.connection is None else wall.connection.seconds_left()
        named = [replace(each, kernel=from_source(self.text, each.name, each.file)) for each in self.launches]
        try:
            return compile_launches(named, [target], seconds=seconds)
        except CompileError as error:
            raise CheckFailed(f"replay: {self.name} launches a kernel that does not compile: {error}") from None


class _Replayer:
    """The one object `replay`; `l2` is the cache model that its meter runs with."""

    def __init__(self, l2: L2 | str | None = None) -> None:
        self._l2 = l2

    def with_l2(self, l2: L2 | str) -> _Replayer:
        """`replay` with a model of an L2 cache, of a device ("H100 SXM") or your own: `traffic` then has DRAM bytes."""
        return _Replayer(l2)

    def __call__(self, launcher: Callable[..., Any], /, *args: Any, **kwargs: Any) -> _Replay:
        """Replay `launcher(*args, **kwargs)`; tensors among the arguments may lie in lists, tuples and dicts.

        Raises:
            CheckFailed: there is nothing to judge, and why: no launch, torch in a kernel's place, a kernel that is more
                than arithmetic, or that fails, races or leaves its arguments.
            Exception: what the launcher itself raises.
        """
        return _judge(launcher, args, kwargs, execute=True, l2=self._l2)

    def code(self, target: str, launcher: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Code]:
        """The machine code of what `launcher(*args, **kwargs)` launches. Nothing is executed: "meta" tensors will do.

        Raises CheckFailed as a replay does, and where a kernel does not compile.
        """
        return _judge(launcher, args, kwargs, execute=False).code(target)


replay = _Replayer()


@wall.student_side
def _record(launcher: Callable[..., Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """What a launcher does with inputs of these shapes, as plain data: a recording, or why there is none."""
    import msgspec

    from threeloops.inner.replay.inputs import Inputs
    from threeloops.inner.replay.recorder import record
    from threeloops.inner.replay.recordings.steps import RecordingRefused

    args, kwargs = msgspec.convert(inputs, Inputs).zeros()
    try:
        return record(launcher, args, kwargs).to_dict()
    except RecordingRefused as error:
        return {"refused": str(error)}


def _judge(
    launcher: Callable[..., Any], args: Any, kwargs: Any, *, execute: bool, l2: L2 | str | None = None
) -> _Replay:
    """Record a launcher and have its kernels executed, or only described; outputs on the device of the inputs."""
    import msgspec

    from threeloops.inner.replay.inputs import inputs_of
    from threeloops.inner.replay.messages import answer_from, perform_compiled, question
    from threeloops.inner.replay.recordings.steps import RecordingRefused, decode

    inputs, storages = inputs_of(args, kwargs)
    recorded = _record(launcher, msgspec.to_builtins(inputs))
    if type(recorded) is dict and "refused" in recorded:
        raise _failure(launcher, str(recorded["refused"])[:1000])
    try:
        recording = decode(recorded)
    except RecordingRefused as error:
        raise _failure(launcher, str(error)) from None
    asked = question(_cell(launcher), recording, inputs, storages if execute else None, l2)
    answer = answer_from(*_ask(launcher, *asked))
    if answer.refused:
        raise _failure(launcher, answer.refused)
    outputs = answer.outputs
    if execute and wall.connection is None and inputs.device != "cpu":
        outputs = perform_compiled(asked[0], storages)
    name = wall.name_of(launcher)
    return _Replay(outputs, answer.traffic, list(answer.launches), answer.torch_bytes, answer.text, name)


def _ask(launcher: Callable[..., Any], tree: dict[str, Any], buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Have a question answered where kernels are interpreted: behind the wall, here, or in a process next to it."""
    from threeloops.frames import FrameError
    from threeloops.inner.interpreter import interpreted
    from threeloops.inner.replay.messages import perform
    from threeloops.inner.replay.server import ask
    from threeloops.module_process import ProcessLost

    try:
        if wall.connection is not None:
            return wall.connection.replay(tree, buffers)
        return perform(tree, buffers) if interpreted() and not _aside else ask(tree, buffers, _SECONDS)
    except (FrameError, ProcessLost) as error:
        raise _failure(launcher, f"was not judged: the process that executes kernels is lost ({error})") from None


def _cell(launcher: Callable[..., Any]) -> str:
    """The text of the cell that the launcher stands in: the submitted one behind the wall, else that of its source."""
    if wall.connection is not None:
        return wall.connection.answer
    import functools
    import inspect
    import linecache

    function: Any = launcher
    while isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type):  # apply of a torch.autograd.Function
        function = getattr(owner, "forward", function)
    code = getattr(inspect.unwrap(function), "__code__", None)
    text = "".join(linecache.getlines(code.co_filename)) if code is not None else ""
    if not text:
        raise _failure(launcher, "has no source that can be read: define it with def, in a cell or a file")
    return text


def _failure(launcher: Callable[..., Any], why: str) -> CheckFailed:
    return CheckFailed(f"replay: {wall.name_of(launcher)} {why}")
