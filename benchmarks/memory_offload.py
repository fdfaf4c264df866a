"""An AdamW step with its state elsewhere: how long it takes, and how long it was predicted to take."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
from threeloops.inner.memory.offload import Channel, FileStore, OffloadedAdamW, Rates, ThreadChannel, step_seconds
from threeloops.inner.memory.offload.channel import Pairs, channel_for

from benchmarks.result import Prediction, Series
from benchmarks.turns import in_turns, timed

STEP = "AdamW step"
FUSED, SAME_BITS = "torch.optim.AdamW(fused=True), resident", "torch.optim.AdamW(foreach=False), resident"
"""The peer, and the one whose arithmetic is ours to the last bit."""
CHUNKS = 8
LINKS = {"host memory": None, "a link of 1 GB/s": 1e9}
STATE_BYTES = 2 * 4
"""The bytes of one parameter's state: two moments in float32."""


class Offloading(NamedTuple):
    series: list[Series]
    predictions: list[Prediction]
    facts: dict[str, Any]


def offloading(device: str, elements: int, rounds: int) -> Offloading:
    """Seconds of an AdamW step with its state in host memory, in files, and behind a slow link; and as predicted.

    The rates behind a prediction are those of two chunks, each part by itself. They are measured in turns with whole
    steps, so that each finds its memory as cold as a step does.
    """
    chunk = elements // CHUNKS
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:

        def offloaded(size: int = elements, **how: Any) -> OffloadedAdamW:
            made = OffloadedAdamW([weight(size, device)], chunk_elements=chunk, **how)
            stack.callback(made.close)
            return made

        clock = ChannelClock(device)
        two_chunks = offloaded(2 * chunk, buffers=1, channel=clock)
        parties: dict[str, Callable[[], Any]] = {
            FUSED: torch.optim.AdamW([weight(elements, device)], fused=True).step,
            SAME_BITS: torch.optim.AdamW([weight(elements, device)], foreach=False).step,
            **{
                name: offloaded(buffers=buffers, channel=None if link is None else ThreadChannel(link)).step
                for name, link, buffers in links(device)
            },
            "OffloadedAdamW, mapped files, 2 buffers": offloaded(store=FileStore(folder)).step,
        }
        samples = in_turns(parties | {"two chunks": two_chunks.step}, device, rounds)
    whole = samples.pop("two chunks")
    rates = clock.rates(whole, 2 * STATE_BYTES * chunk)
    series = [Series(STEP, name, "s", times, "lower", name == FUSED) for name, times in samples.items()]
    predictions = []
    for name, link, buffers in links(device):
        here = rates if link is None else Rates(link, link, rates.update)
        seconds = step_seconds([STATE_BYTES * chunk] * CHUNKS, here, buffers=buffers)
        predictions.append(Prediction(STEP, name, name, "s", seconds, median(samples[name])))
    return Offloading(series, predictions, {"parameters": elements, "chunks": CHUNKS, "bytes_per_second": vars(rates)})


def links(device: str) -> list[tuple[str, float | None, int]]:
    """Name, bytes per second and buffers of each place that is predicted; only a CPU has a link that is simulated."""
    return [
        (f"OffloadedAdamW, {place}, {buffers} buffer{'s' * (buffers > 1)}", link, buffers)
        for place, link in LINKS.items()
        if link is None or device == "cpu"
        for buffers in (1, 2)
    ]


def weight(elements: int, device: str) -> torch.Tensor:
    made = torch.randn(elements, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    made.grad = torch.ones_like(made)
    return made


class ChannelClock:
    """The device's own channel, but each submission is carried out at once and timed.

    An optimiser with one buffer fetches and writes in turns, and what its step takes beyond that is the update.
    """

    def __init__(self, device: str) -> None:
        self.device, self.seconds = device, list[float]()
        self._channel: Channel = channel_for(torch.device(device))

    def submit(self, pairs: Pairs) -> Callable[[], None]:
        self.seconds.append(timed(lambda: self._channel.submit(pairs)(), self.device))
        return lambda: None

    def close(self) -> None:
        self._channel.close()

    def rates(self, steps: tuple[float, ...], step_bytes: int) -> Rates:
        """Return rates from the seconds of whole steps of `step_bytes` bytes of state. Earlier submissions were
        warm-up."""
        copies = len(self.seconds) // (len(steps) + 1)
        of_steps = [self.seconds[at : at + copies] for at in range(copies, len(self.seconds), copies)]
        fetch, write = (median(sum(each[which::2]) for each in of_steps) for which in (0, 1))
        update = median(step - sum(each) for step, each in zip(steps, of_steps, strict=True))
        return Rates(step_bytes / fetch, step_bytes / write, step_bytes / update)
