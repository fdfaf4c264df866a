"""The backward pass of data parallelism: gradients wait for their bucket, buckets for the link.

The times are those of `bucketed_step`. They equal the times of DDP on a virtual cluster in which each rank has a link
of its own to the next. Here a chunk may have any number of bytes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from threeloops.figures import bar_corners, figure, fitting, legend_above, name_bar, name_rows, palette, time_axis
from threeloops.simulation.link import SharedLink
from threeloops.training.data_parallel.buckets import assign_buckets
from threeloops.training.data_parallel.scaling import Gradient, bucketed_step
from threeloops.units import readable_bytes, readable_seconds

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["REFERENCE", "Bucket", "Layer", "Overlap", "draw_buckets", "draw_exposed", "fill_buckets"]

_HIDDEN = palette.green
_EXPOSED = palette.vermillion
_BACKWARD = palette.sky
_PLOT_WIDTH = 8.3


class Layer(NamedTuple):
    """A layer with the seconds of its backward pass, and the bytes of its gradients."""

    name: str
    seconds: float
    bytes: int


class Bucket(NamedTuple):
    """Gradients that are reduced together: complete at `ready`, on the link from `start` to `end` (seconds)."""

    layers: tuple[str, ...]
    bytes: int
    ready: float
    start: float
    end: float


@dataclass(frozen=True)
class Overlap:
    """A backward pass with its all-reduces; times are seconds from its beginning."""

    layers: tuple[Layer, ...]
    """The layers in the order of the backward pass, beginning with the model's last layer."""
    buckets: tuple[Bucket, ...]

    @property
    def backward(self) -> float:
        return sum(layer.seconds for layer in self.layers)

    @property
    def seconds(self) -> float:
        """The time until the last gradient is reduced."""
        return max(self.backward, self.buckets[-1].end if self.buckets else 0.0)

    @property
    def communication(self) -> float:
        return sum(bucket.end - bucket.start for bucket in self.buckets)

    @property
    def exposed(self) -> float:
        """Seconds of communication that no computation hides."""
        return sum(max(0.0, bucket.end - max(bucket.start, self.backward)) for bucket in self.buckets)


def fill_buckets(
    layers: Sequence[Layer], bucket_bytes: float, *, ranks: int, latency: float, bandwidth: float
) -> Overlap:
    """Walk the backward pass of `layers` (in the order of the model) and reduce each bucket as soon as it is full.

    As in torch's DDP, a bucket is full when it holds `bucket_bytes` or more, and the last one takes the rest. The link
    from each rank to the next has `latency` seconds and `bandwidth` bytes/s.
    """
    if not layers:
        raise ValueError("layers is empty: expected at least one layer")
    if ranks < 1:
        raise ValueError(f"ranks = {ranks}: expected 1 or more")
    if not (0 <= latency < math.inf and bandwidth > 0 and bucket_bytes >= 0):
        raise ValueError(
            f"latency = {latency} s, bandwidth = {bandwidth} bytes/s, bucket_bytes = {bucket_bytes}: expected a finite "
            "latency of 0 or more, a bandwidth above 0 and bucket bytes of 0 or more"
        )
    backward = tuple(reversed(layers))
    ready = tuple(accumulate(layer.seconds for layer in backward))
    gradients = [Gradient(at, layer.bytes, 1) for at, layer in zip(reversed(ready), layers, strict=True)]
    cap = max(bucket_bytes, 1) / 2**20  # from one byte on each layer has a bucket of its own
    step = bucketed_step(gradients, ready[-1], ranks, SharedLink(latency, bandwidth), cap, cap)
    buckets = []
    for indices, span in zip(assign_buckets([layer.bytes for layer in layers], cap, cap), step.buckets, strict=True):
        held = [layers[index] for index in indices]
        full = gradients[indices[-1]].ready
        buckets.append(Bucket(tuple(layer.name for layer in held), sum(layer.bytes for layer in held), full, *span))
    return Overlap(backward, tuple(buckets))


def draw_buckets(overlap: Overlap, axis_seconds: float | None = None) -> "Figure":
    """Backward above, all-reduces below: green while computation hides them, red from then on. A line leads from the
    moment at which a bucket is full to the moment at which its all-reduce begins.

    `axis_seconds` is the length of the axis. Give it if pictures of several bucket sizes are to be compared.
    """
    end = axis_seconds or overlap.seconds or 1e-6
    fig, axes = figure(width=10.0, height=2.7)
    start = 0.0
    for layer in overlap.layers:
        _draw_bar(axes, start, start + layer.seconds, 0.0, _BACKWARD, layer.name, end)
        start += layer.seconds
    for bucket in overlap.buckets:
        hidden = min(max(overlap.backward, bucket.start), bucket.end)
        parts = [(bucket.start, hidden, _HIDDEN), (hidden, bucket.end, _EXPOSED)]
        longer = max(parts, key=lambda part: part[1] - part[0])
        for part in parts:
            if part[1] > part[0]:
                _draw_bar(axes, *part[:2], 1.6, part[2], readable_bytes(bucket.bytes) if part is longer else "", end)
        axes.plot([bucket.ready, bucket.start], [0.4, 1.2], color=palette.ink, lw=1.0)
    axes.axvline(overlap.backward, color=palette.grey, lw=1.0, ls="--", zorder=0)
    axes.set_xlim(0, 1.005 * end)
    axes.set_ylim(2.15, -0.55)
    name_rows(axes, [0.0, 1.6], ["backward", "all-reduce"])
    axes.spines["left"].set_visible(False)
    time_axis(axes, end)
    total = overlap.communication
    share = f", {overlap.exposed / total:.0%} of communication exposed" if total else ""
    count = f"{len(overlap.buckets)} bucket{'s' * (len(overlap.buckets) > 1)}"
    axes.set_title(f"{count}: {readable_seconds(overlap.seconds)}{share}")
    legend_above(axes, {"hidden": _HIDDEN, "exposed": _EXPOSED})
    return fig


def _draw_bar(axes: "Axes", start: float, end: float, y: float, colour: str, text: str, whole: float) -> None:
    from matplotlib.collections import PolyCollection

    inches = (end - start) / whole * _PLOT_WIDTH
    corners = [bar_corners(start, end, y, 0.4)]
    edge = "white" if inches > 0.06 else colour  # it would hide a thin bar
    axes.add_collection(PolyCollection(corners, facecolors=colour, edgecolors=edge, lw=0.7))
    name_bar(axes, (start + end) / 2, y, fitting(text, inches, 9))


def draw_exposed(steps: Mapping[str, tuple[float, float]], computing: float, what: str = "predicted") -> "Figure":
    """Draw steps by name: their computation, the communication that nothing hides, and a mark at another number of
    seconds, such as a prediction. `steps` has the measured and the other seconds of each."""
    fig, axes = figure(width=9.0, height=0.5 * len(steps) + 1.4)
    for row, (taken, marked) in enumerate(steps.values()):
        axes.barh([row], [1e3 * computing], height=0.6, color=_BACKWARD)
        axes.barh([row], [1e3 * (taken - computing)], left=1e3 * computing, height=0.6, color=_EXPOSED, alpha=0.8)
        axes.plot([1e3 * marked] * 2, [row - 0.42, row + 0.42], color=palette.ink, lw=2)
        axes.text(1e3 * max(taken, marked), row, f"  {1e3 * taken:.4f} ms", va="center")
    axes.set_yticks(range(len(steps)), steps)
    axes.set(ylim=(len(steps) - 0.4, -0.6), xlabel="ms per step")
    axes.set_xlim(0, 1.25e3 * max(max(pair) for pair in steps.values()))
    legend_above(axes, {"computation": _BACKWARD, "exposed communication": _EXPOSED, f"mark: {what}": palette.ink})
    return fig


def _start_together(model: "torch.nn.Module") -> None:
    from threeloops.training.data_parallel.replicas import broadcast_tensors

    broadcast_tensors([*model.parameters(), *model.buffers()], None)


def _assign_buckets(sizes: Sequence[int], bucket_bytes: int, first_bytes: int) -> list[list[int]]:
    return assign_buckets(sizes, bucket_bytes / 2**20, first_bytes / 2**20)


def _overlap(model: "torch.nn.Module", buckets: Sequence[Sequence[str]]) -> Callable[[], None]:
    """Average bucket by bucket, for a model whose gradients come in the order of the buckets."""
    import torch
    import torch.distributed as dist

    parameters = dict(model.named_parameters())
    place = {name: number for number, bucket in enumerate(buckets) for name in bucket}
    arrived = [0] * len(buckets)
    under_way: list[Any] = []

    def note(name: str) -> None:
        number = place[name]
        arrived[number] += 1
        if arrived[number] == len(buckets[number]):
            gradients = [parameters[member].grad.reshape(-1) for member in buckets[number]]
            flat = torch.cat(gradients) / dist.get_world_size()
            under_way.append((buckets[number], flat, dist.all_reduce(flat, async_op=True)))

    for name in place:
        parameters[name].register_post_accumulate_grad_hook(lambda _, name=name: note(name))

    def finish() -> None:
        for bucket, flat, work in under_way:
            work.wait()
            pieces = flat.split([parameters[name].numel() for name in bucket])
            for name, piece in zip(bucket, pieces, strict=True):
                parameters[name].grad.copy_(piece.view_as(parameters[name]))
        under_way.clear()
        arrived[:] = [0] * len(buckets)

    return finish


def _scaling(
    forward: float, backward: float, gradient_bytes: int, buckets: int, ranks: int, latency: float, bandwidth: float
) -> SimpleNamespace:
    ring = 2 * (ranks - 1) * (latency + gradient_bytes / (buckets * ranks * bandwidth))
    end = 0.0
    for number in range(1, buckets + 1):
        end = max(end, forward + backward * number / buckets) + ring
    exposed = end - forward - backward
    hidden = 1 - exposed / (buckets * ring) if ring else 1.0
    return SimpleNamespace(seconds=end, efficiency=(forward + backward) / end, hidden=hidden)


REFERENCE: dict[str, Any] = {
    "start_together": _start_together,
    "assign_buckets": _assign_buckets,
    "overlap": _overlap,
    "scaling": _scaling,
}
"""Stand-ins for the answers to lab 09 that a reader has not written."""
