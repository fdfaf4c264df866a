"""Predict the time of a data-parallel step, from the share of communication that is hidden, or bucket by bucket.

The model of buckets is exact if each rank has a link of its own to the next one. It follows each message of each ring
all-reduce, with uneven chunks and any start. Times are seconds, and sizes are bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from threeloops.simulation.link import SharedLink
from threeloops.training.data_parallel.buckets import BUCKET_CAP_MB, FIRST_BUCKET_MB, assign_buckets

__all__ = [
    "DataParallelStep",
    "Gradient",
    "bucketed_step",
    "overlapped_step",
    "ring_all_reduce_ends",
    "scaling_efficiency",
]


@dataclass(frozen=True)
class Gradient:
    """One parameter's gradient of `elements`, ready `ready` seconds after the start of the step."""

    ready: float
    elements: int
    bytes_per_element: int = 4


@dataclass(frozen=True)
class DataParallelStep:
    """One step of `ranks` equal ranks."""

    ranks: int
    compute: float
    """Forward, backward and optimizer of one rank, as they take alone."""
    communication: float
    """All-reduces of one rank, as they take alone."""
    seconds: float
    buckets: tuple[tuple[float, float], ...] = ()
    """Start and end of each bucket's all-reduce."""

    def __post_init__(self) -> None:
        if self.ranks < 1 or not (self.compute > 0 and self.communication >= 0):
            raise ValueError(
                f"{self.ranks} ranks, compute = {self.compute} s, communication = {self.communication} s: expected at "
                "least 1, more than 0, and 0 or more"
            )

    @property
    def hidden(self) -> float:
        """The share of the communication during which the rank computed, or 1.0 if there is none."""
        exposed = self.seconds - self.compute
        return 1 - exposed / self.communication if self.communication else 1.0

    @property
    def efficiency(self) -> float:
        """Throughput divided by `ranks` times that of one rank, if the batch per rank stays the same."""
        return self.compute / self.seconds

    def throughput(self, batch_per_rank: int) -> float:
        """Samples per second of all ranks."""
        return self.ranks * batch_per_rank / self.seconds


def scaling_efficiency(throughput: float, ranks: int, throughput_of_one: float) -> float:
    """throughput / (ranks · throughput of one), from measurements: 1.0 is linear scaling."""
    if not (throughput > 0 and throughput_of_one > 0) or ranks < 1:
        raise ValueError(
            f"throughput = {throughput} on {ranks} ranks, {throughput_of_one} on one: expected positive numbers"
        )
    return throughput / (ranks * throughput_of_one)


def overlapped_step(compute: float, communication: float, hidden: float, ranks: int) -> DataParallelStep:
    """A step of which a stated share of the communication, `hidden`, takes place during computation.

    For gradients of S bytes on a ring `communication` is 2(n − 1) · (latency + S ÷ (n · bandwidth)).
    """
    if not 0 <= hidden <= 1 or hidden * communication > compute:
        raise ValueError(
            f"hidden = {hidden} of {communication} s behind {compute} s of computation: expected a share from 0 to 1 "
            "that fits into the computation"
        )
    return DataParallelStep(ranks, compute, communication, compute + (1 - hidden) * communication)


def bucketed_step(
    gradients: Sequence[Gradient],
    compute: float,
    ranks: int,
    link: SharedLink,
    bucket_cap_mb: float = BUCKET_CAP_MB,
    first_bucket_mb: float = FIRST_BUCKET_MB,
) -> DataParallelStep:
    """The step of `DDP`: each bucket's ring all-reduce begins when its last gradient is ready and the one before it has
    ended, and the step ends with computation and the last all-reduce.

    Args:
        gradients: in the order of registration, all of one dtype.
        compute: seconds of the whole step without communication.
    """
    sizes = [gradient.elements * gradient.bytes_per_element for gradient in gradients]
    ends = [0.0] * ranks
    alone = 0.0
    spans = []
    for bucket in assign_buckets(sizes, bucket_cap_mb, first_bucket_mb):
        elements = sum(gradients[i].elements for i in bucket)
        bytes_each = gradients[bucket[0]].bytes_per_element
        ready = max(gradients[i].ready for i in bucket)
        starts = [max(ready, end) for end in ends]
        ends = ring_all_reduce_ends(starts, elements, bytes_each, link)
        spans.append((min(starts), max(ends)))
        alone += max(ring_all_reduce_ends([0.0] * ranks, elements, bytes_each, link))
    return DataParallelStep(ranks, compute, alone, max([compute, *ends]), tuple(spans))


def ring_all_reduce_ends(
    starts: Sequence[float], elements: int, bytes_per_element: int, link: SharedLink
) -> list[float]:
    """Return when each rank ends a ring all-reduce (Patarasuk & Yuan 2009) that it starts at its own time.

    In each of 2(n − 1) steps a rank sends one chunk to the next rank and receives one from the previous rank. It
    continues when its own chunk has left, after size ÷ bandwidth, and the other has arrived, a latency after it left.
    With equal starts and chunks of S ÷ n bytes all end after 2(n − 1) · (latency + S ÷ (n · bandwidth)).
    """
    ranks = len(starts)
    now = np.array(starts, dtype=float)
    lengths = elements // ranks + (np.arange(ranks) < elements % ranks)
    sending = np.tile(lengths * bytes_per_element / link.bandwidth, 2)
    before = np.arange(ranks) - 1
    for step in range(2 * (ranks - 1)):
        departed = now + sending[(-1 - step) % ranks :][:ranks]  # rank r sends chunk r - 1 - step
        now = np.maximum(departed, departed[before] + link.latency)
    return [float(end) for end in now]
