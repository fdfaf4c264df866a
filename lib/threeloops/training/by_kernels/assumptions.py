"""Values that the published tables do not hold: measured or published, and three chosen with training runs in sight."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

__all__ = ["Assumptions", "AttentionKernel"]

AttentionKernel = Literal["unfused", "flash2", "fastest"]
"""The attention of a framework: products and a softmax that write the scores, FlashAttention-2, or the fastest one that
was published for the device."""

_SUSTAINED = MappingProxyType({"H100 SXM": 661 / 790, "H200 SXM": 663 / 796})
_CUDNN = 620 / 323


@dataclass(frozen=True)
class Assumptions:
    """Assumptions about a run. The tables are bursts of single kernels on an idle GPU of the data sheet."""

    attention: AttentionKernel = "flash2"
    backward: float = 3.0
    """Seconds of attention's backward pass per second of its forward pass. FlashAttention-2 takes 3.02 on an H100 and
    2.99 on an H200, and cuDNN 3.11 and 3.01: medians that we measured (benchmarks/GPU.md)."""
    flash2: float = _CUDNN
    """Seconds of FlashAttention-2 on a Hopper per second of the fastest kernel. cuDNN, which is as fast as
    FlashAttention-3 (arXiv 2407.08608, figure 5), reaches 620 TFLOP/s where FlashAttention-2 reaches 323: heads of 128
    on an H100, medians that we measured. On other devices the published kernel counts as it is."""
    stream: float = 0.8
    """Share of the sheet's bandwidth that element-wise kernels and the optimizer reach: on an H100, RMSNorm reaches 74%
    and softmax 84% of it (benchmarks/GPU.md)."""
    between: float = 0.8
    """Share of the line rate that a ring reaches between nodes. The tables have none; within a node, fitted rings reach
    0.7 to 0.9 of the link."""
    overlap: float = 0.0
    """Share of tensor parallelism's collectives that is hidden behind products, as by Transformer Engine."""
    power: float = 1.0
    """The card's power limit, relative to the sheet's. The clock follows with the cube root, as power grows with its
    cube if the voltage follows the clock."""
    bandwidth: float | None = None
    """Bytes/s of the card's memory, if it is a variant of the sheet's."""
    speed: float = 1.0
    """The speed of all kernels, relative to these predictions: the predicted seconds of a step divided by yours."""

    def clock(self, device: str) -> float:
        """Return the clock under a training run's steady load, relative to the bursts of the tables.

        We measured matrix products for a minute on an H100 and an H200: 661 of 790 and 663 of 796 TFLOP/s are left at
        the power limit. Other devices are assumed to lose as much as these two: when the A100 was assumed to lose
        nothing, the runs of each of its three sources were predicted 8% to 14% too fast on average.
        """
        usual = sum(_SUSTAINED.values()) / len(_SUSTAINED)
        return _SUSTAINED.get(device, usual) * self.power ** (1 / 3)
