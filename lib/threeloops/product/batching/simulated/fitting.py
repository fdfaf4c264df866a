"""The cost of a step, learnt from the steps of a real engine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from threeloops.product.batching.simulated.steps import StepShape

__all__ = ["FittedCost", "fit"]


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
