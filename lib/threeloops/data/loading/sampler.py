"""Which sample comes next, and what has to be saved to resume exactly there.

The order of an epoch depends on seed and epoch alone. So the state is three numbers, whoever loads the samples and
however many are in flight: seed, epoch, and how many samples have been *used*.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["SamplerState", "advanced", "batches", "epoch_order", "remaining"]


@dataclass(frozen=True)
class SamplerState:
    """For a checkpoint: `position` samples of `epoch`, shuffled by `seed`, have been used."""

    seed: int
    epoch: int = 0
    position: int = 0


def epoch_order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of one epoch: a permutation of shape (samples,), from a generator seeded with the pair.

    Raises ValueError for a seed of more than 32 bits: the generator would take the rest as part of the epoch.
    """
    if not 0 <= seed < 1 << 32:
        raise ValueError(f"seed = {seed}: expected 0 … 2³² − 1")
    if epoch < 0:
        raise ValueError(f"epoch = {epoch}: expected 0 or more")
    return np.random.default_rng([seed, epoch]).permutation(samples)


def remaining(state: SamplerState, samples: int) -> NDArray[np.int64]:
    """The rest of the epoch, in order. Raises ValueError for a position that the data set does not have."""
    return epoch_order(samples, state.seed, state.epoch)[_checked_position(state, samples) :]


def batches(state: SamplerState, samples: int, batch: int) -> list[NDArray[np.int64]]:
    """The batches of the rest of the epoch, in order; the last may be short. Raises ValueError as `remaining` does."""
    if batch < 1:
        raise ValueError(f"batch = {batch}: expected at least 1")
    left = remaining(state, samples)
    return [left[start : start + batch] for start in range(0, len(left), batch)]


def advanced(state: SamplerState, samples: int, used: int) -> SamplerState:
    """The state after `used` more samples; a finished epoch begins the next one at position 0.

    Raises ValueError for a position that the data set does not have.
    """
    if samples < 1 or used < 0:
        raise ValueError(f"samples = {samples}, used = {used}: expected a data set that is not empty, and used ≥ 0")
    epochs, position = divmod(_checked_position(state, samples) + used, samples)
    return replace(state, epoch=state.epoch + epochs, position=position)


def _checked_position(state: SamplerState, samples: int) -> int:
    if not 0 <= (position := state.position) <= samples:
        wrong = f"position = {position}: the data set has {samples} samples"
        raise ValueError(f"{wrong}; was this state written for another one?")
    return position
