"""The least time of a step, at the rates of a data sheet."""

import math
from dataclasses import dataclass
from functools import cached_property

from threeloops.hardware import Accelerator
from threeloops.inner.costs import Work
from threeloops.inner.roofline import Roofline
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching.simulated.steps import StepShape

__all__ = ["RooflineCost"]


@dataclass(frozen=True)
class RooflineCost:
    """The cost of a step of `config` on `accelerator`, with weights, keys and values in `dtype` of `bytes_per_element`
    bytes.

    `reached` is the share of the data sheet's bandwidth and FLOP/s that is reached. `overhead` is the additional time
    of every step in seconds, in which the device waits for its host. Activations stay on the chip or are small beside
    the weights, and are left out.
    """

    config: GPTConfig
    accelerator: Accelerator
    dtype: str = "bf16"
    bytes_per_element: float = 2
    reached: float = 1.0
    overhead: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.reached <= 1:
            raise ValueError(f"reached = {self.reached!r}: expected a share above 0, at most 1")
        if self.config.sliding_window is not None:
            raise ValueError(
                f"sliding_window = {self.config.sliding_window}: this cost counts every key of a sequence; use a "
                "configuration without a window"
            )
        if not 0 <= self.overhead < math.inf:
            raise ValueError(f"overhead = {self.overhead!r}: expected seconds, at least 0")

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of one token in all layers: a key and a value of `head_dim` elements for each key-value head."""
        return 2 * self.config.layers * self.config.kv_heads * self.config.head_dim * self.bytes_per_element

    def work(self, step: StepShape) -> Work:
        config = self.config
        head = config.vocabulary_size * config.width
        weights = (config.matmul_parameters - (0 if step.samples else head)) * self.bytes_per_element
        moved = weights + (step.keys + step.tokens) * self.kv_bytes_per_token  # read by all, written for the new
        products = 2 * (config.matmul_parameters - head) * step.tokens + 2 * head * step.samples
        return Work(moved, products + 4 * config.layers * config.qkv_widths[0] * step.pairs)

    def __call__(self, step: StepShape) -> float:
        return self._roofline.time_floor(self.work(step)) / self.reached + self.overhead

    @cached_property
    def _roofline(self) -> Roofline:
        return Roofline(self.accelerator, self.dtype)
