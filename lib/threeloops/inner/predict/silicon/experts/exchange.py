"""The exchange of tokens among the ranks that hold experts, within one node, as in DeepEP."""

from dataclasses import dataclass

import numpy as np

from threeloops.inner.predict.silicon.constants import constant
from threeloops.inner.predict.silicon.sheet import Sheet, Sizes, overlapped

__all__ = ["PHASES", "Exchange", "exchange_seconds"]

PHASES = ("dispatch", "combine")
_SCALES = 4 / 128
"""Bytes of scales per element in fp8: a float for 128 elements."""


@dataclass(frozen=True)
class Exchange:
    """Constants of one device, library and phase. Seconds, or shares of what the data sheet says."""

    start: float = constant(5e-5, 1e-6, 1e-3)
    """Seconds for few tokens: launches, and waiting for the counts of all ranks."""
    token: float = constant(1e-7, 1e-11, 1e-6)
    """Seconds of a token of each rank besides its bytes."""
    reach: float = constant(0.5, 0.05, 1.0)
    """Share of the sheet's bandwidth of a link."""
    sharpness: float = constant(2.0, 1.0, 8.0)
    """How well the start and the tokens overlap (`overlapped`)."""


def exchange_seconds(
    device: Sheet,
    phase: str,
    tokens: Sizes,
    width: Sizes,
    top_k: Sizes,
    experts: Sizes,
    ranks: Sizes,
    constants: Exchange,
    *,
    low_latency: bool = False,
) -> np.ndarray:
    """Return the seconds to bring `tokens` of each rank to their experts ("dispatch") or back ("combine").

    A rank sends a token once to each other rank that has one of its experts, in bf16. The kernels for low latency send
    it once per expert, and dispatch it in fp8 with scales (https://github.com/deepseek-ai/DeepEP). The experts are
    chosen at random. Raises ValueError for another phase or a device without links.
    """
    if phase not in PHASES:
        raise ValueError(f"phase = {phase!r}: expected dispatch or combine")
    link = device.require_link()
    tokens, width, top_k, experts, ranks = (
        np.asarray(value, dtype=float) for value in (tokens, width, top_k, experts, ranks)
    )
    sent = top_k * (ranks - 1) / ranks if low_latency else (ranks - 1) * (1 - _missed(top_k, experts, experts / ranks))
    element = 1 + _SCALES if low_latency and phase == "dispatch" else 2.0
    streamed = tokens * (sent * width * element / (link * constants.reach) + constants.token)
    return overlapped(np.asarray(constants.start), streamed, constants.sharpness)


def _missed(top_k: np.ndarray, experts: np.ndarray, of_rank: np.ndarray) -> np.ndarray:
    """Return the probability that none of a token's `top_k` different experts is among the `of_rank` of a rank."""
    probability = np.ones(np.broadcast(top_k, experts).shape)
    for drawn in range(int(top_k.max())):
        others = np.maximum(experts - of_rank - drawn, 0) / np.maximum(experts - drawn, 1)
        probability = np.where(drawn < top_k, probability * others, probability)
    return probability
