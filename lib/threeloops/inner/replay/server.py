"""A process that executes replays, each in a fork of its own.

It imports torch, Triton and the meter once, and makes one small replay before any other, so that a fork finds
everything imported. A fork that runs too long or dies takes nothing with it, and is reported. A notebook on a GPU uses
this process because interpreted and compiled kernels cannot share a process. Behind the grading wall the grader's own
warm process calls `serve`.

A student's process imports this module too, to record once. There the meter may be withheld, so `messages`, which needs
it, is imported only if a replay is executed.
"""

import os
import signal
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from threeloops import frames
from threeloops.frames import Buffer, FrameError, Late
from threeloops.inner.replay.allowlist.admit import admit
from threeloops.inner.replay.inputs import inputs_of
from threeloops.inner.replay.recorder import record
from threeloops.inner.replay.recordings.steps import Allocate, LaunchStep, Recording, StridedView
from threeloops.module_process import ModuleProcess, question_pipes

__all__ = ["ask", "converse", "main", "record_once", "serve", "warm_up"]

_SPARE_SECONDS = 5.0


def serve(requests: int, answers: int, confine: Callable[[], None] = lambda: None) -> None:
    """Answer questions until the other end closes. `confine` is called in each fork before it reads its question."""
    while True:
        try:
            tree, buffers = frames.receive(requests)
            frames.send(answers, *_answered(tree, buffers, confine, {requests, answers}))
        except FrameError:
            return


def converse(requests: int, answers: int, tree: dict, buffers: Sequence[Buffer], seconds: float) -> tuple[dict, list]:
    """Ask one question that may take this many seconds, as the other end of `serve`. Raises FrameError."""
    deadline = time.monotonic() + seconds + _SPARE_SECONDS
    frames.send(requests, {**tree, "seconds": seconds}, buffers, deadline)
    return frames.receive(answers, deadline)


def _answered(
    tree: dict[str, Any], buffers: Sequence[Buffer], confine: Callable[[], None], private: Collection[int]
) -> tuple[dict, list]:
    seconds = float(tree.pop("seconds"))
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        _child(tree, buffers, theirs, confine, {ours, *private})
    os.close(theirs)
    why = ""
    try:
        return frames.receive(ours, time.monotonic() + seconds)
    except Late:
        why = f"did not end within {seconds:.0f} s: is there a loop without end, or too much to interpret?"
    except FrameError:
        pass
    finally:
        os.close(ours)
        ended = _end(child)
    return {"refused": why or f"ended the process that ran it ({_how(ended)}): it took too much memory, or crashed"}, []


def _child(
    tree: dict, buffers: Sequence[Buffer], answer: int, confine: Callable[[], None], private: Collection[int]
) -> None:
    try:
        for fd in private:
            os.close(fd)
        confine()
        from threeloops.inner.replay.messages import perform

        frames.send(answer, *perform(tree, buffers))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _end(child: int) -> int:
    """Kill a fork that may still run; returns its wait status."""
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return os.waitpid(child, 0)[1]


def _how(status: int) -> str:
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"


_SERVER = ModuleProcess(
    "the process that executes kernels",
    __name__,
    {"TRITON_INTERPRET": "1", "THREELOOPS_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""},
)


def ask(tree: dict[str, Any], buffers: Sequence[Buffer], seconds: float) -> tuple[dict[str, Any], list[Any]]:
    """Return the answer to a question that may take this many seconds. Raises ProcessLost."""
    return _SERVER.ask({**tree, "seconds": seconds}, buffers, seconds + _SPARE_SECONDS)


def warm_up() -> None:
    """Import the modules that an execution needs, and run one, so that a fork starts with all of it."""
    from threeloops.inner import interpreter

    interpreter.enable_without_gpu()
    torch.set_num_threads(1)
    _run_once()


def main() -> None:
    requests, answers = question_pipes()
    warm_up()
    frames.send(answers, {})
    serve(requests, answers)


_CELL = """\
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets, mask=offsets < n, other=0.0)
    value = tl.exp(value - tl.max(value, 0)) / tl.sum(value, 0)
    value = tl.dot(value[None, :], value[:, None]) + tl.zeros((1, 1), tl.float32)
    tl.store(out + tl.arange(0, 1)[:, None] + tl.arange(0, 1)[None, :], value)
"""


def record_once() -> None:
    """Import what a student's process needs: Triton and the recorder, but not the meter, which a lab may withhold."""
    kernel = admit(_CELL).load().kernel

    def launcher(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(1, 1)
        kernel[(1,)](x, out, 16, BLOCK=16)
        return out

    record(launcher, [torch.zeros(16)], {})


def _run_once() -> None:
    """Execute one small recording. Raises RuntimeError if kernels cannot be replayed here."""
    from threeloops.inner.replay.messages import perform, question

    inputs, storages = inputs_of([torch.ones(16)], {})
    x = inputs.views[0]
    out = StridedView(1, "float32", (1, 1), (1, 1), 0)
    launch = LaunchStep("kernel", (1, 1, 1), {"x": x, "out": out, "n": 16}, {"BLOCK": 16}, {})
    recording = Recording((Allocate("float32", 1), launch), out)
    answer, _ = perform(*question(_CELL, recording, inputs, storages, None))
    if answer["refused"]:
        raise RuntimeError(f"kernels cannot be replayed here: a small one {answer['refused']}")
