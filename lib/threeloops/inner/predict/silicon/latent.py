"""Decoding with multi-head latent attention: one latent vector per token serves as key and value of all heads."""

from dataclasses import dataclass

import numpy as np

from threeloops.inner.predict.silicon.constants import constant
from threeloops.inner.predict.silicon.sheet import Sheet, Sizes, overlapped

__all__ = ["LATENT", "VALUES", "LatentDecode", "latent_decode_seconds"]

LATENT = 576
"""Elements of a token's cache in DeepSeek-V3: 512 of the latent vector, and 64 with the rotary position."""
VALUES = 512
"""Elements that are summed as its value."""
_HEADS = 64
"""Heads that a program handles at a time, and keys of one of its steps."""
_KEYS = 64


@dataclass(frozen=True)
class LatentDecode:
    """Constants of one device. Seconds, or shares of what the data sheet says."""

    start: float = constant(1.2e-5, 1e-6, 3e-5)
    """Seconds of a call with nothing to do."""
    stream: float = constant(0.9, 0.3, 1.0)
    """Share of the sheet's bandwidth."""
    reach: float = constant(0.7, 0.2, 1.0)
    """Share of the sheet's FLOP/s that products of 64 × 64 reach."""
    tail: float = constant(1e-5, 1e-9, 5e-5)
    """Seconds of each wave of programs after the first, besides its products."""
    join: float = constant(1e-6, 1e-9, 1e-5)
    """Seconds to join the parts of a sequence, for each doubling of its blocks of keys."""
    sharpness: float = constant(3.0, 1.0, 8.0)
    """How well computing and loading overlap (`overlapped`)."""


def latent_decode_seconds(
    device: Sheet, batch: Sizes, keys: Sizes, heads: Sizes, constants: LatentDecode, *, element_bytes: float = 2.0
) -> np.ndarray:
    """Return the seconds of one query per sequence and head over the latent cache of `keys` tokens per sequence.

    All heads read the same cache (https://arxiv.org/abs/2405.04434), so products count as much as traffic. A program
    handles 64 heads of a sequence. If there are fewer programs than multiprocessors, sequences are split, as in
    FlashMLA (https://github.com/deepseek-ai/FlashMLA).
    """
    batch, keys, heads = (np.asarray(value, dtype=float) for value in (batch, keys, heads))
    programs = batch * np.ceil(heads / _HEADS)
    blocks = np.ceil(keys / _KEYS)
    moved = element_bytes * batch * keys * LATENT + 2 * batch * heads * (LATENT + VALUES)
    loaded = moved / (device.bandwidth * constants.stream)
    rate = device.rate("bf16") * constants.reach / device.multiprocessors
    block = 2 * np.minimum(heads, _HEADS) * _KEYS * (LATENT + VALUES) / rate
    turns = programs / device.multiprocessors
    parts = np.clip(np.floor(device.multiprocessors / programs), 1, blocks)
    computed = block * np.maximum(turns * blocks, np.ceil(blocks / parts))
    waves = constants.tail * (np.ceil(turns) - 1)
    return (
        constants.start
        + overlapped(computed, loaded, constants.sharpness)
        + waves
        + constants.join * np.log2(1 + blocks)
    )
