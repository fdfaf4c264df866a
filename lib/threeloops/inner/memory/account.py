"""The accountant: what a training step will hold, computed before anything runs."""

from functools import cached_property
from typing import Any

from threeloops.figures import palette
from threeloops.inner.memory.block import saved_by_layer
from threeloops.inner.memory.sizes import Model, TrainingStep
from threeloops.inner.memory.step import predicted
from threeloops.inner.memory.timeline import KINDS, Timeline

__all__ = ["Account", "account", "draw_bars", "draw_timeline"]

_MOST_PLACES = 400


def account(model: Model, batch: int, sequence: int, **policies: Any) -> "Account":
    """Return the account of one training step.

    `policies` are the other fields of `TrainingStep`: dtype, optimizer, masters, …
    """
    return Account(TrainingStep(model, batch, sequence, **policies))


class Account:
    """The memory that a step holds, by kind, and the moment at which it holds the most. Every number is in bytes.

    `layer` is the memory that one layer keeps for its backward pass, by tensor.
    """

    def __init__(self, step: TrainingStep):
        self.step = step
        self.layer = saved_by_layer(step)
        self.timeline = predicted(step)
        self.peak_bytes = self.timeline.peak_bytes

    @property
    def per_parameter(self) -> float:
        """Bytes per parameter of all that does not depend on the batch: weights, gradients, masters, states.

        For bfloat16 with masters and AdamW 2 + 2 + 4 + 8 = 16, as published (but see `masters` of `TrainingStep`).
        """
        step = self.step
        return (2 * step.parameters + step.master_bytes + step.states) / step.model.parameters_count()

    @cached_property
    def parts(self) -> dict[str, int]:
        """The peak of each kind by itself. They differ in time: gradients grow while activations are freed."""
        peaks = {kind: self.timeline.peak_of(kind) for kind in KINDS}
        return {kind: peak for kind, peak in peaks.items() if peak}

    @cached_property
    def at_peak(self) -> dict[str, int]:
        return self.timeline.by("kind")

    def fits(self, budget_bytes: float) -> bool:
        return self.peak_bytes <= budget_bytes


_COLOURS = {
    "parameter": palette.blue,
    "master": palette.sky,
    "gradient": palette.green,
    "state": palette.orange,
    "buffer": palette.grey,
    "input": palette.grey,
    "activation": palette.vermillion,
    "temporary": palette.purple,
}


def draw_bars(axes: Any, bars: dict[str, dict[str, int]], *, unit: float = 2**30) -> None:
    """Draw one stacked bar for each name, from bytes by kind such as `Account.at_peak`, in units of `unit` bytes."""
    names = list(bars)
    left = [0.0] * len(names)
    worth_seeing = 0.003 * max(sum(bar.values()) for bar in bars.values()) / unit
    for kind in KINDS:
        sizes = [bars[name].get(kind, 0) / unit for name in names]
        if any(sizes):
            label = _label(kind, max(sizes) > worth_seeing)
            axes.barh(names, sizes, left=left, color=_COLOURS[kind], label=label, height=0.62)
            left = [at + size for at, size in zip(left, sizes, strict=True)]
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def draw_timeline(axes: Any, timeline: Timeline) -> None:
    """Draw live MiB by kind from the first mark on, change after change, and a line at the peak.

    Of several changes that share a place in the picture the one with the most live bytes is drawn: a picture with all
    of them would be too large for a page to hold as SVG.
    """
    curve = timeline.curve()
    begin = timeline.marks[0][0] if timeline.marks else 0
    kinds = [kind for kind in KINDS if kind in curve]
    drawn = _highest([change.live for change in timeline.changes[begin:]])
    axes.stackplot(
        [place + 1 for place in drawn],
        [[curve[kind][begin + place] / 2**20 for place in drawn] for kind in kinds],
        colors=[_COLOURS[kind] for kind in kinds],
        labels=[_label(kind, max(curve[kind]) > 0.003 * timeline.peak_bytes) for kind in kinds],
        lw=0,
    )
    axes.axvline(timeline.peak_at - begin, color=palette.ink, lw=1, ls=":")
    axes.margins(x=0)


def _highest(live: list[int]) -> list[int]:
    """Return the places of the most live bytes, one in each of at most `_MOST_PLACES` parts, and both ends."""
    if not live:
        return []
    length = -(-len(live) // _MOST_PLACES)
    parts = (range(first, min(first + length, len(live))) for first in range(0, len(live), length))
    return sorted({0, len(live) - 1, *(max(part, key=live.__getitem__) for part in parts)})


def _label(kind: str, visible: bool) -> str:
    """Return the label of a kind. The legend lists every kind except a grey one that is too small to see, because
    matplotlib omits labels with "_"."""
    return kind if visible or kind not in ("buffer", "input") else f"_{kind}"
