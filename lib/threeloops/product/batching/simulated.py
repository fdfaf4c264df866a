"""Predict steps instead of computing them: the same scheduler in virtual time, on any device of the hardware table.

A step reads the weights once, however many requests it has, and the keys and values of all requests. It does the
arithmetic of its tokens. `RooflineCost` takes the longer of the two times at the rates of the device's data sheet, so
it is a lower bound, which `reached` can scale. `fit` learns the cost of a step from the steps of a real engine.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from threeloops.hardware import Accelerator
from threeloops.inner.costs import Work
from threeloops.inner.roofline import Roofline
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.request import Batch, Request
from threeloops.simulation.clock import VirtualClock

__all__ = ["Cost", "FittedCost", "RooflineCost", "SimulatedExecutor", "StepShape", "fit"]


@dataclass(frozen=True)
class StepShape:
    """The quantities that determine a step's cost: for each chunk (position of its first token, tokens, whether it
    samples)."""

    chunks: tuple[tuple[int, int, bool], ...]

    @classmethod
    def of(cls, batch: Batch) -> "StepShape":
        return cls(tuple((chunk.start, chunk.count + chunk.guesses, chunk.samples) for chunk in batch.chunks))

    @cached_property
    def tokens(self) -> int:
        return sum(count for _, count, _ in self.chunks)

    @cached_property
    def samples(self) -> int:
        """Rows of which the head gives logits."""
        return sum(samples for _, _, samples in self.chunks)

    @cached_property
    def keys(self) -> int:
        """The keys that are read. A chunk's keys are read once, for all of its tokens."""
        return sum(start + count for start, count, _ in self.chunks)

    @cached_property
    def pairs(self) -> int:
        """Pairs of a token and a key that it sees."""
        return sum(count * start + count * (count + 1) // 2 for start, count, _ in self.chunks)


Cost = Callable[[StepShape], float]
"""Seconds of a step."""


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


@dataclass(frozen=True)
class FittedCost:
    """Seconds as a weighted sum over the quantities of a step, with weights that are not negative (`fit`)."""

    seconds_per: dict[str, float]

    def __call__(self, step: StepShape) -> float:
        features = _features(step)
        return sum(seconds * features[name] for name, seconds in self.seconds_per.items())


def fit(steps: Sequence[StepShape], seconds: Sequence[float]) -> FittedCost:
    """The cost that explains these steps best: least squares of the relative errors, no weight negative.

    Relative, because a long step would otherwise count for hundreds of short ones. Raises ValueError for fewer steps
    than there are weights, or a time that is not positive.
    """
    names = list(_features(StepShape(((0, 1, True),))))
    if len(steps) < len(names) or len(steps) != len(seconds):
        raise ValueError(
            f"{len(steps)} steps and {len(seconds)} times: expected equal numbers, and at least {len(names)}; record "
            "a longer trace"
        )
    if not min(seconds) > 0:
        raise ValueError(f"a step took {min(seconds)} s: expected times above 0")
    rows = np.array([[_features(step)[name] for name in names] for step in steps]) / np.array(seconds)[:, None]
    return FittedCost(dict(zip(names, _nonnegative(rows, np.ones(len(seconds))).tolist(), strict=True)))


def _features(step: StepShape) -> dict[str, float]:
    prompts = sum(count for _, count, _ in step.chunks if count > 1)
    return {
        "step": 1.0,
        "several tokens": float(step.tokens > 1),  # products of matrices, no longer of a matrix and a vector
        "chunk": len(step.chunks),
        "decoded token": step.tokens - prompts,
        "prompt token": prompts,
        "sample": step.samples,
        "key": step.keys,
        "pair": step.pairs,
    }


def _nonnegative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """x ≥ 0 with the least |a x − b|, by coordinate descent: each x in turn is set to its best value given the others.

    The problem is convex, so this ends at the least; columns are scaled to length 1 so that it gets there soon.
    """
    length = np.linalg.norm(a, axis=0)
    length[length == 0] = 1.0
    a = a / length
    gram = a.T @ a
    target = a.T @ b
    x = np.zeros(a.shape[1])
    for _ in range(20_000):
        before = x.copy()
        for j in range(len(x)):
            x[j] = max(0.0, x[j] + (target[j] - gram[j] @ x) / max(gram[j, j], 1e-12))
        if np.abs(x - before).max() <= 1e-12 * max(1.0, np.abs(x).max()):
            break
    return x / length


class SimulatedExecutor:
    """Lets virtual time pass instead of computing. Every token is −1, so only `max_tokens` ends a request."""

    def __init__(self, clock: VirtualClock, cost: Cost):
        self.clock = clock
        self.cost = cost

    def check(self, request: Request) -> None:
        """Any tokens will do."""

    def execute(self, batch: Batch) -> list[Sequence[int]]:
        self.clock.sleep_until(self.clock.now() + self.cost(StepShape.of(batch)))
        return [(-1,) if chunk.samples else () for chunk in batch.chunks]
