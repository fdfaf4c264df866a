"""Seeds of ranks: some random numbers must be the same on all ranks, and others must differ."""

import random

import numpy as np
import torch

__all__ = ["seed_rank"]


def seed_rank(seed: int, rank: int | None = None) -> None:
    """Seed the global generators of Python, NumPy and torch (all devices) of this process.

    - Without a rank: the stream that all ranks share. For initialisation, and for a permutation of the data set of
      which each rank takes its part. Call it before the model is built.
    - With a rank: a stream of its own. For augmentation and dropout, which would otherwise drop the same units for the
      different samples of all ranks. Call it before the first step. Ranks that hold parts of one sample (tensor
      parallelism) pass the number of their data-parallel replica, not that of the process.

    Streams come from NumPy's SeedSequence. With `seed + rank` instead, rank 1 of seed 0 would repeat rank 0 of seed 1.
    """
    for name, value in (("seed", seed), ("rank", rank)):
        if value is not None and value < 0:
            raise ValueError(f"{name} = {value}: expected 0 or more")
    words = np.random.SeedSequence(seed, spawn_key=() if rank is None else (rank,)).generate_state(4)
    random.seed(words.tobytes())
    np.random.seed(words)
    torch.manual_seed(int.from_bytes(words[:2].tobytes(), "little"))
