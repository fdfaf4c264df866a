"""Choose the next sample, and save what is needed to resume exactly there.

The order of an epoch depends only on the seed and the epoch. So the state is three numbers: the seed, the epoch, and
the number of samples that were *used*. It depends neither on who loads the samples nor on how many are in flight.

Data-parallel ranks share one order and one state. In each step they take the next samples, an equal share each, so
their shares are disjoint and their epochs end with the same step. Any other number of ranks can continue from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["SamplerState", "advanced", "batches", "check_rank", "epoch_order", "remaining", "step_sizes"]


@dataclass(frozen=True)
class SamplerState:
    """Progress for a checkpoint: all ranks together have used `position` samples of `epoch`, shuffled by `seed`."""

    seed: int
    epoch: int = 0
    position: int = 0


def epoch_order(samples: int, seed: int, epoch: int, shards: Sequence[int] | None = None) -> NDArray[np.int64]:
    """Return the order of one epoch: a permutation of shape (samples,), drawn with `seed` and `epoch`.

    Args:
        shards: the number of samples in each shard. If given, whole shards are shuffled, and the samples within a
            shard stay in order, so that it can be read from front to back.

    Raises ValueError if the shards have another number of samples in total, or if the seed has more than 32 bits,
    because the generator would take the rest as part of the epoch.
    """
    if not 0 <= seed < 1 << 32:
        raise ValueError(f"seed = {seed}: expected 0 … 2³² − 1")
    if epoch < 0:
        raise ValueError(f"epoch = {epoch}: expected 0 or more")
    generator = np.random.default_rng([seed, epoch])
    if shards is None:
        return generator.permutation(samples)
    if sum(shards) != samples or min(shards, default=0) < 0:
        raise ValueError(f"shards with {sum(shards)} samples: expected sizes of 0 or more with a sum of {samples}")
    numbers = np.split(np.arange(samples), np.cumsum(shards)[:-1])
    return np.concatenate([numbers[shard] for shard in generator.permutation(len(shards))])


def remaining(state: SamplerState, samples: int, shards: Sequence[int] | None = None) -> NDArray[np.int64]:
    """The rest of the epoch, in order. Raises ValueError for a position that the data set does not have."""
    return epoch_order(samples, state.seed, state.epoch, shards)[_checked_position(state, samples) :]


def batches(
    state: SamplerState, samples: int, batch: int, rank: int = 0, ranks: int = 1, shards: Sequence[int] | None = None
) -> list[NDArray[np.int64]]:
    """This rank's batches of the rest of the epoch, in order.

    All ranks have the same number of batches. They have equal sizes except in the last step, where batches may be
    shorter and differ by one sample between ranks. If fewer samples than ranks are left at the end, this epoch does not
    use them.

    Raises ValueError as `remaining` does, and for a rank that does not exist.
    """
    check_rank(rank, ranks)
    ends = np.cumsum(step_sizes(state, samples, batch, ranks))
    steps = np.split(remaining(state, samples, shards), ends)[:-1]  # without samples that are left over
    return [np.array_split(step, ranks)[rank] for step in steps]


def step_sizes(state: SamplerState, samples: int, batch: int, ranks: int = 1) -> list[int]:
    """List how many samples all ranks together use in each step of the rest of the epoch."""
    if batch < 1:
        raise ValueError(f"batch = {batch}: expected at least 1")
    check_rank(0, ranks)
    steps, short = divmod(samples - _checked_position(state, samples), batch * ranks)
    return [batch * ranks] * steps + ([short] if short >= ranks else [])


def advanced(state: SamplerState, samples: int, used: int, ranks: int = 1) -> SamplerState:
    """Return the state after `used` more samples, of all ranks together.

    An epoch is finished if fewer samples than ranks are left, and the next one begins at position 0. So several ranks
    may use different numbers of samples in each epoch, and with them `used` has to lie within this epoch.

    Raises ValueError for a position that the data set does not have, for fewer samples than ranks, and for more samples
    than are left of this epoch if there are several ranks.
    """
    if samples < 1 or used < 0:
        raise ValueError(f"samples = {samples}, used = {used}: expected a data set that is not empty, and used ≥ 0")
    if not 1 <= ranks <= samples:
        raise ValueError(f"ranks = {ranks}: expected 1 to {samples}, since each needs one of the {samples} samples")
    end = _checked_position(state, samples) + used
    if ranks > 1 and end > samples:
        raise ValueError(
            f"used = {used}, ranks = {ranks}: expected at most {samples - state.position}, which are left within this "
            "epoch; advance by the sizes of its steps, as step_sizes lists them"
        )
    epochs, position = divmod(end, samples)
    if samples - position < ranks:
        epochs += 1
        position = 0
    return replace(state, epoch=state.epoch + epochs, position=position)


def check_rank(rank: int, ranks: int) -> None:
    """Raise ValueError for a rank that does not exist."""
    if ranks < 1:
        raise ValueError(f"ranks = {ranks}: expected at least 1")
    if not 0 <= rank < ranks:
        raise ValueError(f"rank = {rank}, ranks = {ranks}: expected a rank from 0 to ranks - 1")


def _checked_position(state: SamplerState, samples: int) -> int:
    if not 0 <= (position := state.position) <= samples:
        wrong = f"position = {position}: the data set has {samples} samples"
        raise ValueError(f"{wrong}; was this state written for another one?")
    return position
