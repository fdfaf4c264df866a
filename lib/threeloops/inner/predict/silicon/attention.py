"""Attention as inference engines run it: whole prompts, and one query per sequence over a paged cache."""

from dataclasses import dataclass

import numpy as np

from threeloops.inner.predict.silicon.constants import constant, fitted
from threeloops.inner.predict.silicon.sheet import Sheet, Sizes, overlapped, share_left

__all__ = [
    "BEFORE_HOPPER", "Decode", "Prefill", "UnsplitDecode", "decode_constants", "decode_seconds", "prefill_seconds",
]  # fmt: skip

BEFORE_HOPPER = ("A100 SXM 80GB", "L40S")
"""Measured devices that run FlashAttention-2, which does not split the keys of heads that are not grouped."""

_BLOCK = 128
"""Queries, and keys, that a program handles at a time."""
_EXPONENTIALS = 16
"""Exponentials per clock of a multiprocessor's special function units."""
_THREADS = 2048
_LARGEST_PROGRAM = 512
"""Threads of a multiprocessor, and of a program that writes a row of keys and values, at most."""


@dataclass(frozen=True)
class Prefill:
    """Constants of one device. Seconds, or shares of what the data sheet says."""

    start: float = constant(1e-5, 1e-6, 3e-5)
    """Seconds of a call with nothing to do."""
    reach: float = constant(0.8, 0.3, 1.0)
    """Share of the sheet's FLOP/s that products of 128 × 128 × 128 reach."""
    narrow: float = constant(0.1, 1e-3, 1.0)
    """How much slower the products are with heads of 64 elements."""
    exponentials: float = constant(0.5, 1e-4, 3.0)
    """Share of the exponentials' time that nothing hides."""
    tail: float = constant(1e-6, 1e-9, 1e-5)
    """Seconds of a program before and after its blocks of keys."""
    wave: float = constant(0.3, 0.01, 1.0)
    """How much of the idle part of the last wave is lost."""
    spread: float = constant(4.0, 1.0, 8.0)
    """How well long and short programs fill the device (`overlapped`)."""
    stream: float = constant(0.6, 0.1, 1.0)
    """Share of the sheet's bandwidth."""
    row: float = constant(2e-6, 1e-8, 1e-4)
    """Seconds of a program that writes one token's keys and values into the paged cache."""
    sharpness: float = constant(2.0, 1.0, 8.0)
    """How well computing and loading overlap (`overlapped`)."""


def prefill_seconds(
    device: Sheet,
    batch: Sizes,
    tokens: Sizes,
    heads: Sizes,
    kv_heads: Sizes,
    head_dim: Sizes,
    constants: Prefill,
) -> np.ndarray:
    """Return the seconds of causal self-attention over whole prompts in bf16, with its write into the paged cache.

    A program handles 128 queries of a head; block i of them sees i + 1 blocks of keys, as in FlashAttention
    (https://arxiv.org/abs/2307.08691). The cache is written by another kernel, a program per token. For short prompts
    and few heads that kernel takes most of the time.
    """
    batch, tokens, heads, kv_heads, head_dim = (
        np.asarray(value, dtype=float) for value in (batch, tokens, heads, kv_heads, head_dim)
    )
    pairs = _BLOCK * _BLOCK
    rate = device.rate("bf16") * constants.reach / device.multiprocessors
    products = 4 * head_dim * pairs / rate * (1 + constants.narrow * (_BLOCK / head_dim - 1))
    block = products + constants.exponentials * pairs / (_EXPONENTIALS * device.clock)
    blocks = np.ceil(tokens / _BLOCK)
    programs = batch * heads * blocks
    whole = (programs * (blocks + 1) / 2 * block + programs * constants.tail) / device.multiprocessors
    turns = programs / device.multiprocessors
    idle = np.clip(np.ceil(turns) / turns - 1, 0, 1)
    longest = blocks * block + constants.tail
    computed = overlapped(whole * (1 + constants.wave * idle), longest, constants.spread)
    moved = 2 * batch * tokens * head_dim * (2 * heads + 6 * kv_heads)  # keys and values: read, written, read again
    loaded = moved / (device.bandwidth * constants.stream)
    resident = device.multiprocessors * _THREADS / np.minimum(_LARGEST_PROGRAM, kv_heads * head_dim)
    cached = batch * tokens / resident * constants.row
    return constants.start + overlapped(computed, loaded, constants.sharpness) + cached


@dataclass(frozen=True)
class Decode:
    """Constants of one device. Seconds, or shares of what the data sheet says."""

    start: float = constant(1e-5, 1e-6, 3e-5)
    """Seconds of a call with nothing to do."""
    stream: float = constant(0.9, 0.3, 1.0)
    """Share of the sheet's bandwidth."""
    cached: float = constant(1.6, 1.2, 6.0)
    """The bandwidth of keys and values that lie in the L2, relative to the sheet's."""
    keep: float = constant(0.7, 0.1, 1.0)
    """Share of the L2 in which they survive until the next call."""
    fill: float = constant(5e-6, 1e-9, 1e-4)
    """Seconds until memory delivers at its full rate."""
    tail: float = constant(1e-6, 1e-9, 1e-5)
    """Seconds of a program, and half of those to join two parts of a long sequence."""


@dataclass(frozen=True)
class UnsplitDecode(Decode):
    """Constants of a device before Hopper, on which FlashAttention-2 runs."""

    block: float = constant(1e-6, 1e-9, 1e-5)
    """Seconds of 128 keys of a program that handles a whole sequence."""


def decode_constants(device: str) -> Decode:
    """Return the fitted constants of the kernel that a device runs. Raises LookupError if it was not measured."""
    return fitted(UnsplitDecode if device in BEFORE_HOPPER else Decode, device, "bf16")


def decode_seconds(
    device: Sheet,
    batch: Sizes,
    keys: Sizes,
    kv_heads: Sizes,
    head_dim: Sizes,
    constants: Decode,
    *,
    heads: Sizes | None = None,
    element_bytes: float = 2.0,
    warm: bool = True,
) -> np.ndarray:
    """Return the seconds of one query per sequence over `keys` keys and values each.

    They are read once for all query heads of a group. Long sequences are split, as in Flash-Decoding. With the
    constants of an `UnsplitDecode`, only those of grouped heads are: if each query head has keys of its own, one
    program reads a whole sequence ("only apply split-k for decoding" in flash_api.cpp of FlashAttention-2). `heads` is
    the number of query heads; without it, heads are taken as grouped. `warm`: whether a small cache is still in the L2
    from the last call, as in the published measurements. In a model it never is.
    """
    batch, keys, kv_heads, head_dim = (np.asarray(value, dtype=float) for value in (batch, keys, kv_heads, head_dim))
    size = batch * keys * kv_heads * 2 * head_dim * element_bytes
    cold = share_left(size, constants.keep * device.l2, 8) if warm else 1.0
    loaded = size / device.bandwidth * (cold / constants.stream + (1 - cold) / constants.cached)
    turns = batch * kv_heads / device.multiprocessors
    joins = 0.5 * np.log2(1 + keys / _BLOCK)
    if isinstance(constants, UnsplitDecode) and heads is not None:
        alone = np.asarray(heads) == kv_heads
        whole = np.ceil(keys / _BLOCK) * constants.block * np.maximum(turns, 1)
        loaded = np.where(alone, overlapped(loaded, whole, 4), loaded)
        joins = np.where(alone, 0.0, joins)
    return constants.start + loaded + cold * constants.fill + constants.tail * (turns + joins)
