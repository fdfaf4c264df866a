"""The cost of a step, learnt from the steps of a real engine: its mean, and how steps spread around it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from threeloops.product.batching.simulated.spread import Spread
from threeloops.product.batching.simulated.steps import Cost, StepShape, padded_together

__all__ = ["FittedCost", "fit"]

_REWEIGHTINGS = 100
"""Rounds at most. Recorded steps need about ten until no prediction changes by more than 10⁻⁹ of itself."""

_PAUSE = 5.0
"""Steps that take so many times what is expected are left out."""


@dataclass(frozen=True)
class FittedCost:
    """Seconds as a weighted sum over the quantities of a step, with weights that are not negative (`fit`).

    Calling it gives the mean. `spread` has the recorded times. `block_size` is that of the engine's cache.
    """

    seconds_per: dict[str, float]
    spread: Spread | None = None
    block_size: int = 16

    def __call__(self, step: StepShape) -> float:
        features = _features(step, self.block_size)
        return sum(seconds * features[name] for name, seconds in self.seconds_per.items())

    def sampled(self, seed: int) -> Cost:
        """Return a cost that draws each step's time around the mean, as the recorded steps spread around it.

        Use it for one replay, because each call goes on to the next draw (`Spread.draws`). Raises ValueError if there
        is no recording.
        """
        if self.spread is None:
            raise ValueError("this cost has no spread: make it with fit(steps, seconds)")
        draw = self.spread.draws(seed)
        return lambda step: draw(self(step))


def fit(steps: Sequence[StepShape], seconds: Sequence[float], block_size: int = 16) -> FittedCost:
    """The cost that explains these steps best: least squares of the relative errors, no weight negative.

    Errors are relative, because a long step would otherwise count for hundreds of short ones. They are relative to the
    prediction, because errors relative to the measured times would favour short predictions: a time of half the
    prediction is off by 100% of itself, one of twice the prediction by only 50%.

    Give the steps in the order in which they were recorded, because their spread keeps it. Steps that take more than
    five times their prediction are pauses. They are left out of the mean and of the spread, because a recording has too
    few of them to tell how often they come.

    Raises ValueError for fewer steps than there are weights, or a time that is not positive.
    """
    names = list(_features(StepShape(((0, 1, True),)), block_size))
    if len(steps) < len(names) or len(steps) != len(seconds):
        raise ValueError(
            f"{len(steps)} steps and {len(seconds)} times: expected equal numbers, and at least {len(names)}; record "
            "a longer trace"
        )
    if not min(seconds) > 0:
        raise ValueError(f"a step took {min(seconds)} s: expected times above 0")
    times = np.array(seconds)
    quantities = (_features(step, block_size) for step in steps)
    rows = np.array([[features[name] for name in names] for features in quantities], dtype=float)
    weights, expected = _reweighted(rows, times)
    usual = times <= _PAUSE * expected
    if not usual.all() and usual.sum() >= len(names):
        times = times[usual]
        weights, expected = _reweighted(rows[usual], times)
    spread = Spread(tuple(expected.tolist()), tuple((times / expected).tolist()))
    return FittedCost(dict(zip(names, weights.tolist(), strict=True)), spread, block_size)


def _reweighted(rows: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights with the least squares of errors relative to the predictions, and the predictions."""
    expected = times
    weights = np.zeros(rows.shape[1])
    for _ in range(_REWEIGHTINGS):
        weights = _nonnegative(rows / expected[:, None], times / expected)
        before = expected
        expected = np.maximum(rows @ weights, 1e-3 * times)
        if np.abs(expected / before - 1).max() < 1e-9:
            break
    return weights, expected


def _features(step: StepShape, block_size: int) -> dict[str, float]:
    prompts = sum(count for _, count, _ in step.chunks if count > 1)
    rows = [count for _, count, _ in step.chunks]
    blocks = [-(-(start + count) // block_size) for start, count, _ in step.chunks]
    groups = padded_together(rows, blocks)
    return {
        "step": 1.0,
        "several tokens": float(step.tokens > 1),  # products of matrices, no longer of a matrix and a vector
        "chunk": len(step.chunks),
        "decoded token": step.tokens - prompts,
        "prompt token": prompts,
        "token beyond 8": max(0, step.tokens - 8),  # with fewer, products wait for the weights
        "sample": step.samples,
        "key": step.keys,
        "pair": step.pairs,
        "group": len(groups),  # each has its own operators in every layer
        "padded key": block_size * sum(len(group) * blocks[group[0]] for group in groups),
    }


def _nonnegative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """x ≥ 0 with the least |a x − b|, by the active-set method (Lawson and Hanson 1974, "Solving Least Squares
    Problems", chapter 23).

    Weights are freed one at a time, the one with the steepest slope first, and those that turn negative are set to 0
    again. Columns are scaled to length 1, and reduced to as many rows by QR.
    """
    length = np.linalg.norm(a, axis=0)
    length[length == 0] = 1.0
    q, a = np.linalg.qr(a / length)
    b = q.T @ b
    x = np.zeros(a.shape[1])
    free = np.zeros(len(x), dtype=bool)
    for _ in range(10 * len(x)):  # each round lessens the error, so far fewer are needed
        slope = np.where(free, -np.inf, a.T @ (b - a @ x))
        if slope.max() <= 1e-10 * np.abs(b).max():
            break
        free[slope.argmax()] = True
        while True:
            best = np.zeros(len(x))
            best[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            negative = free & (best <= 0)
            if not negative.any():
                break
            share = (x[negative] / np.maximum(x[negative] - best[negative], 1e-300)).min()
            x = np.where(free, x + share * (best - x), 0.0)
            free &= x > 1e-14
            if not free.any():
                break
        x = best * free
    return x / length
