"""One small recording and one small replay, made before any other, so that a fork finds everything imported."""

import torch

from threeloops.inner.bench.admission.admit import admit
from threeloops.inner.bench.plan.inputs import inputs_of
from threeloops.inner.bench.plan.plan import Allocate, LaunchStep, Place, Plan
from threeloops.inner.bench.plan.recorder import record

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
    """What a student's process needs: Triton and the recorder, not the meter, which a lab may withhold."""
    kernel = admit(_CELL).load().kernel

    def launcher(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(1, 1)
        kernel[(1,)](x, out, 16, BLOCK=16)
        return out

    record(launcher, [torch.zeros(16)], {})


def run_once() -> None:
    """Raises RuntimeError where not even this one works."""
    from threeloops.inner.bench.plan.messages import perform, question

    inputs, storages = inputs_of([torch.ones(16)], {})
    x, out = inputs.places[0], Place(1, "float32", (1, 1), (1, 1), 0)
    launch = LaunchStep("kernel", (1, 1, 1), {"x": x, "out": out, "n": 16}, {"BLOCK": 16})
    plan = Plan((Allocate("float32", 1), launch), out)
    answer, _ = perform(*question(_CELL, plan.to_dict(), inputs, storages, None))
    if "refused" in answer:
        raise RuntimeError(f"kernels cannot be replayed here: a small one {answer['refused']}")
