"""The states of a rank's random generators: Python's, NumPy's, and torch's on the CPU and on its GPU."""

import hashlib
import json
import random

import numpy as np
import torch

from threeloops.training.checkpoint.format import from_plain, to_plain

__all__ = ["RANDOM_BYTES", "random_states", "restore_random_states", "seed_from"]

RANDOM_BYTES = 1 << 15
"""The padded size of one rank's states, so that the states of all ranks are the rows of one tensor."""


def random_states() -> bytes:
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    states = {
        "python": random.getstate(),
        "numpy": (kind, np.asarray(keys).tolist(), position, has_gauss, gauss),
        "torch": bytes(torch.get_rng_state().numpy()),
        "cuda": bytes(torch.cuda.get_rng_state().numpy()) if torch.cuda.is_initialized() else None,
    }
    return json.dumps(to_plain(states), separators=(",", ":")).encode().ljust(RANDOM_BYTES)


def restore_random_states(data: bytes) -> None:
    states = from_plain(json.loads(data))
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8))
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(states["cuda"]), dtype=torch.uint8))


def seed_from(data: bytes, rank: int) -> None:
    """Seed a rank that did not exist when the states were saved, from another rank's states and its own number."""
    seed = int.from_bytes(hashlib.sha256(data + rank.to_bytes(8, "little")).digest()[:8], "little")
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)
