"""An AdamW step with its state elsewhere: how long it takes, and how long it was predicted to take."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from threeloops.inner.offload import FileStore, OffloadedAdamW, Rates, ThreadChannel, step_seconds

from benchmarks.result import Series
from benchmarks.turns import in_turns

RESIDENT = "torch.optim.AdamW, resident"
PARTS = ("fetch", "write", "update")
CHUNKS = 16
LINKS = {"host memory": None, "a link of 200 MB/s": 200e6}


def offloading(device: str, elements: int, rounds: int) -> tuple[list[Series], dict[str, Any]]:
    """Seconds of an AdamW step with its state in host memory, in files, and behind a slow link; and as predicted."""
    chunk = elements // CHUNKS

    def weight() -> torch.Tensor:
        made = torch.randn(elements, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
        made.grad = torch.ones_like(made)
        return made

    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        resident = torch.optim.AdamW([weight()], foreach=False)
        parties: dict[str, Callable[[], Any]] = {RESIDENT: resident.step, **parts_of_a_step(device, chunk)}
        predicted: dict[str, tuple[float | None, int]] = {}
        for place, link in LINKS.items():
            for buffers in (1, 2):
                if link is not None and device != "cpu":
                    continue
                channel = ThreadChannel(link) if device == "cpu" else None
                made = OffloadedAdamW([weight()], buffers=buffers, chunk_elements=chunk, channel=channel)
                stack.callback(made.close)
                name = f"OffloadedAdamW, {place}, {buffers} buffer{'s' * (buffers > 1)}"
                parties[name], predicted[name] = made.step, (link, buffers)
        filed = OffloadedAdamW([weight()], store=FileStore(folder), chunk_elements=chunk)
        stack.callback(filed.close)
        parties["OffloadedAdamW, mapped files, 2 buffers"] = filed.step
        samples = in_turns(parties, device, rounds)
    rates = {part: 2 * 4 * chunk / median(samples.pop(part)) for part in PARTS}
    series = [Series("AdamW step", name, "s", times, "lower", name == RESIDENT) for name, times in samples.items()]
    facts = []
    for name, (link, buffers) in predicted.items():
        here = Rates(**(rates if link is None else rates | {"fetch": link, "write": link}))
        shared = link is None and device == "cpu"  # copies and update both draw on the memory of the CPU
        seconds = step_seconds([2 * 4 * chunk] * CHUNKS, here, buffers=buffers, shared=shared)
        measured = median(samples[name])
        facts.append({"by": name, "predicted_seconds": seconds, "measured_seconds": measured,
                      "difference": measured / seconds - 1})  # fmt: skip
    return series, {"parameters": elements, "chunks": CHUNKS, "bytes_per_second": rates, "predicted": facts}


def parts_of_a_step(device: str, chunk: int) -> dict[str, Callable[[], Any]]:
    """What a step consists of, each by itself: one chunk of both moments there, back, and through the update.

    Measured in turns with whole steps, so that each finds its memory as cold as a step does.
    """
    host = [torch.zeros(chunk, pin_memory=device == "cuda") for _ in range(2)]
    near = [torch.zeros(chunk, device=device) for _ in range(2)]
    weight = torch.zeros(chunk, device=device, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    update = torch.optim.AdamW([weight], foreach=False)
    return {
        "fetch": lambda: [to.copy_(of) for to, of in zip(near, host, strict=True)],
        "write": lambda: [to.copy_(of) for to, of in zip(host, near, strict=True)],
        "update": update.step,
    }
