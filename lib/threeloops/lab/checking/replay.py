"""`replay(launcher, …)`: judge the kernels of a cell, not the function that launches them.

    run = replay(softmax, x).require(torch.softmax(x.double(), -1), what="softmax")
    check.true(run.traffic.total.unique_bytes <= 1.05 * 2 * x.nbytes, "softmax moves more than one read and one write")

The launcher runs on zeros, without executing a kernel, and its allocations and launches are recorded. Then the kernels
are taken from the text of its cell and launched the same way on the real inputs, in Triton's interpreter under the
traffic meter. A launcher that computes with PyTorch, remembers results or launches nothing gets no result at all. The
same line works in JupyterLab and behind the grading wall, where the launcher lives in another process.

Traffic, launches and compiled code count only if the values of the run are right. `require` compares the values, and
only then makes `traffic`, `launches`, `torch_bytes` and `code` available. So a kernel that moves the right bytes but
computes nothing earns nothing, and the compiled kernel is always the one that computed the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from threeloops.lab.checking import wall
from threeloops.lab.checking.check import check
from threeloops.lab.checking.failure import CheckFailed

__all__ = ["replay"]

if TYPE_CHECKING:
    from threeloops.inner.codegen.generated_code import Code
    from threeloops.inner.launches import Launch
    from threeloops.inner.meter import L2, Finding, Metered
    from threeloops.inner.replay.inputs import Inputs
    from threeloops.inner.replay.messages import Answer
    from threeloops.inner.replay.recordings.steps import Recording

_SECONDS = 60.0
"""The time limit of one replay if no wall sets another."""

_RTOL = 0.02
"""The default relative tolerance of `require`. It is larger than any rounding error. But it is small enough to refuse
values that a kernel estimates instead of computing them, such as the mean of exp(x) in place of a softmax's sum."""

_aside = False
"""Whether kernels are executed in a separate process even if this one could interpret them."""


@dataclass
class _Replay:
    """A run of the kernels of a cell on the inputs of a test.

    `outputs` is the tensor or tuple of tensors that the launcher returns, with the values that the kernels computed.
    Everything else about the run is available after `require` has found these values right.
    """

    outputs: Any
    _answer: Answer = field(repr=False)
    _name: str = field(repr=False)
    _given: tuple[set[str], ...] = field(repr=False)
    """The arguments of each launch that lie in an input's storage."""
    _right: bool = field(default=False, init=False, repr=False)

    def require(
        self, expected: Any, *, rtol: float = _RTOL, atol: float | None = None, what: str = "", hint: str = ""
    ) -> _Replay:
        """Compare the outputs with `expected`, and return this run. After that, its traffic, launches and code count.

        Args:
            expected: a tensor, or a tuple with one for each output, computed in float64 by the test.
            rtol: the relative tolerance. It is coarse, because a test of values calls `check.close` itself.
            atol: a tenth of `rtol` times the largest expected magnitude if left out.
            what: the name of the run in messages.
            hint: the usual cause of wrong values.

        Raises:
            CheckFailed: a value is wrong. The message says which one, and that nothing else counts until it is right.
        """
        what = what or f"what {self._name} returns"
        wanted = _several(expected)
        got = _several(self.outputs)
        check.equal(len(got), len(wanted), what=f"the number of tensors in {what}")
        for number, (actual, right) in enumerate(zip(got, wanted, strict=True)):
            sizes = right[right.isfinite()].double().abs()
            check.close(
                actual,
                right,
                rtol=rtol,
                atol=atol if atol is not None else 0.1 * rtol * float(sizes.max()) if sizes.numel() else 0.0,
                what=f"values of {what}" + (f", tensor {number}" if len(wanted) > 1 else ""),
                hint=hint or "what a kernel moves, and what it compiles to, counts once its values are right",
            )
        self._right = True
        return self

    @property
    def stored(self) -> int:
        """The number of bytes that the kernels wrote, each byte counted once per launch, to explain wrong values."""
        return self._answer.traffic.total.unique_stored

    @property
    def findings(self) -> list[Finding]:
        """Findings of the meter that do not fail a replay: reads of memory that nothing wrote, failing assertions, and
        lanes of one store that write different values to one address."""
        return self._answer.traffic.findings

    @property
    def traffic(self) -> Metered:
        """The traffic that the meter counted."""
        return self._of_right_values("traffic").traffic

    @property
    def launches(self) -> list[Launch]:
        """All launches in the order in which they were executed."""
        return list(self._of_right_values("launches").launches)

    @property
    def overwritten(self) -> list[str]:
        """The arguments in which a launch wrote into an input, such as "x of softmax_kernel"."""
        answer = self._of_right_values("overwritten")
        return [
            f"{name} of {launch.name}"
            for launch, metered, given in zip(answer.launches, answer.traffic.launches, self._given, strict=True)
            for name, traffic in metered.arguments.items()
            if name in given and traffic.unique_stored
        ]

    @property
    def torch_bytes(self) -> int:
        """The number of bytes that PyTorch reads and writes for the launcher's copies, sums and fills. The traffic of
        the kernels does not include them."""
        return self._of_right_values("torch_bytes").torch_bytes

    def code(self, target: str) -> list[Code]:
        """Compile all executed launches for "sm_80", "sm_90", "sm_100" or "gfx942". This needs no GPU.

        The kernel's text, its constants, the divisibility of its arguments, num_warps and num_stages are those of the
        run. The launcher is not called again.

        Raises CheckFailed if a kernel does not compile, with the compiler's message and the line of the cell.
        """
        from dataclasses import replace

        from threeloops.inner.codegen import CompileError, compile_launches, from_source

        answer = self._of_right_values("code")
        seconds = _SECONDS if wall.connection is None else wall.connection.seconds_left()
        named = [
            replace(launch, kernel=from_source(answer.text, launch.name, launch.file)) for launch in answer.launches
        ]
        try:
            return compile_launches(named, [target], seconds=seconds)
        except CompileError as error:
            raise CheckFailed(f"replay: {self._name} launches a kernel that does not compile: {error}") from None

    def _of_right_values(self, name: str) -> Answer:
        if not self._right:
            raise RuntimeError(f"run.{name} counts only for right values: call run.require(expected) before")
        return self._answer


def _several(tensors: Any) -> tuple[Any, ...]:
    return tuple(tensors) if type(tensors) in (list, tuple) else (tensors,)


class _Replayer:
    """The one object `replay`; `l2` is the cache model that its meter runs with."""

    def __init__(self, l2: L2 | str | None = None) -> None:
        self._l2 = l2

    def with_l2(self, l2: L2 | str) -> _Replayer:
        """`replay` with a model of an L2 cache, of a device ("H100 SXM") or your own: `traffic` then has DRAM bytes."""
        return _Replayer(l2)

    def __call__(self, launcher: Callable[..., Any], /, *args: Any, **kwargs: Any) -> _Replay:
        """Replay `launcher(*args, **kwargs)`. Tensors among the arguments may lie in lists, tuples and dicts.

        Raises:
            CheckFailed: there is nothing to judge, with the reason: no launch, torch instead of a kernel, a kernel that
                does more than arithmetic, or one that fails, races or leaves its arguments.
            Exception: raised by the launcher itself.
        """
        return _judge(launcher, args, kwargs, self._l2)

    def grids(self, launcher: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[tuple[int, int, int]]:
        """Return the grid of each launch of `launcher(*args, **kwargs)`, in order. No kernel is executed, so the inputs
        may be longer than an interpreter could work through.

        Raises CheckFailed if the launcher cannot be replayed, or what it raises.
        """
        from threeloops.inner.replay.inputs import inputs_of
        from threeloops.inner.replay.recordings.steps import LaunchStep

        recording = _recording(launcher, inputs_of(args, kwargs)[0])
        return [step.grid for step in recording.steps if isinstance(step, LaunchStep)]


replay = _Replayer()


@wall.student_side
def _record(launcher: Callable[..., Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Record a launcher on inputs of these shapes. Returns the recording as plain data, or why there is none."""
    import msgspec

    from threeloops.inner.replay.inputs import Inputs
    from threeloops.inner.replay.recorder import record
    from threeloops.inner.replay.recordings.steps import RecordingRefused

    args, kwargs = msgspec.convert(inputs, Inputs).zeros()
    try:
        return record(launcher, args, kwargs).to_dict()
    except RecordingRefused as error:
        return {"refused": str(error)}


def _judge(launcher: Callable[..., Any], args: Any, kwargs: Any, l2: L2 | str | None) -> _Replay:
    """Record a launcher and have its kernels executed. The outputs are on the device of the inputs."""
    from threeloops.inner.replay.inputs import inputs_of
    from threeloops.inner.replay.messages import answer_from, perform_compiled, question

    inputs, storages = inputs_of(args, kwargs)
    recording = _recording(launcher, inputs)
    asked = question(_cell(launcher), recording, inputs, storages, l2)
    answer = answer_from(*_ask(launcher, *asked))
    if answer.refused:
        raise _failure(launcher, answer.refused)
    outputs = answer.outputs
    if wall.connection is None and inputs.device != "cpu":
        outputs = perform_compiled(asked[0], storages)
    given = tuple(
        {name for name, view in step.views().items() if view.storage < len(inputs.sizes)} for step in recording.launches
    )
    return _Replay(outputs, answer, wall.name_of(launcher), given)


def _recording(launcher: Callable[..., Any], inputs: Inputs) -> Recording:
    """Record a launcher where it lives, and decode what comes back, which is not trusted."""
    import msgspec

    from threeloops.inner.replay.recordings.steps import RecordingRefused, decode

    recorded = _record(launcher, msgspec.to_builtins(inputs))
    if type(recorded) is dict and "refused" in recorded:
        raise _failure(launcher, str(recorded["refused"])[:1000])
    try:
        return decode(recorded)
    except RecordingRefused as error:
        raise _failure(launcher, str(error)) from None


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
    """Return the text of the launcher's cell: the submitted one behind the wall, and otherwise that of its source."""
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
