"""Silent data corruption: a rank computes something wrong, and nothing fails.

There are three detectors, which see different faults at different costs. After an all-reduce every replica holds the
same bits, so anything that differs afterwards (a bad optimizer step, a flipped bit in a parameter) shows in a checksum
of 8 bytes per rank: `odd_ranks`. A fault before the all-reduce reaches all replicas alike, so no checksum shows it. A
large error of this kind shows in the norm of the rank's own gradient (`outlying`), and any error shows if two ranks
compute the same microbatch (`cross_check`).

Meta counted 6 such interruptions in 54 days on 16,384 GPUs (`goodput/published.py`). Dixit et al. 2021, "Silent Data
Corruptions at Scale" (arXiv 2102.11245), and Hochschild et al. 2021, "Cores that don't count" (HotOS), found machines
that miscalculate in large fleets.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from threeloops.training.collectives import Cost, Link, ring_all_gather_cost

__all__ = ["checksum", "cross_check", "cross_check_cost", "odd_ranks", "odd_ranks_cost", "outlying"]

_WORD = 8
"""Bytes."""
_AT_A_TIME = 2**20
"""Words, so that hashing takes 16 MiB besides, however large a tensor is."""

_GOLDEN, _FIRST, _SECOND = (  # of splitmix64, as int64
    number - 2**64 for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


@torch.no_grad()
def checksum(tensors: Iterable[Tensor]) -> int:
    """Compute 64 bits from the tensors' bytes and their places: Σ mix(wordᵢ + (i + 1) · 0x9E3779B97F4A7C15) modulo 2⁶⁴
    over all 64-bit words, where `mix` is that of splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom
    number generators", in Vigna's version).

    No two words have the same mix, so an error within one word is always seen. Other errors go unseen with a
    probability of about 2⁻⁶⁴, including patterns such as all signs flipped, many of which a sum that is linear in the
    words would miss. It takes one read of the tensors, on their own device.
    """
    total = place = 0
    for tensor in tensors:
        for words in _words(tensor).split(_AT_A_TIME):
            total += int(_mixed(words, place).sum())
            place += len(words)
    return (total + 2**63) % 2**64 - 2**63


def _mixed(words: Tensor, place: int) -> Tensor:
    """Mix the words that begin at this place. int64 wraps, as it should, but its shifts copy the sign bit."""
    x = torch.arange(place + 1, place + len(words) + 1, device=words.device).mul_(_GOLDEN).add_(words)
    for shift, factor in ((30, _FIRST), (27, _SECOND), (31, 1)):
        x.bitwise_xor_((x >> shift).bitwise_and_(2 ** (64 - shift) - 1)).mul_(factor)
    return x


def _words(tensor: Tensor) -> Tensor:
    """The bytes as int64, with zeros at the end."""
    flat = tensor.detach().contiguous().view(-1)
    if not flat.numel():
        return flat.new_empty(0, dtype=torch.int64)
    data = flat.view(torch.uint8)
    if missing := -data.numel() % _WORD:
        data = torch.cat([data, data.new_zeros(missing)])
    elif data.storage_offset() % _WORD:  # a view that begins inside of a word
        data = data.clone()
    return data.view(torch.int64)


def odd_ranks(tensors: Iterable[Tensor], group: dist.ProcessGroup | None = None) -> list[int]:
    """Return the ranks of the group, counted within it, whose tensors differ from those of the majority. If no more
    than half agree, as with two ranks that differ, all ranks are returned. Every rank must call this, and all get the
    same answer."""
    (sums,) = _gather([checksum(tensors)], group)
    most, count = Counter(sums).most_common(1)[0]
    if 2 * count <= len(sums):
        return list(range(len(sums)))
    return [rank for rank, digest in enumerate(sums) if digest != most]


def odd_ranks_cost(ranks: int, link: Link) -> Cost:
    """Return the cost of `odd_ranks`: an all-gather of one word. Hashing also takes one read of the tensors."""
    return ring_all_gather_cost(ranks, _WORD, ranks, link)


def outlying(value: float, group: dist.ProcessGroup | None = None, limit: float = 10.0) -> list[int]:
    """Return the ranks whose value is not finite, or is farther from the median of all than `limit` times the median
    distance.

    Give it the norm of the rank's gradient before the all-reduce, which has the same size on ranks with equal shares of
    a batch. The median distance (MAD) measures honest noise, whatever a single rank says. An error that hardly changes
    the norm passes. With two ranks, both are equally far from the median, so only a value that is not finite is named.
    """
    (bits,) = _gather([int(torch.tensor(value, dtype=torch.float64).view(torch.int64))], group)
    values = torch.tensor(bits).view(torch.float64).tolist()
    finite = [reading for reading in values if math.isfinite(reading)]
    middle = median(finite) if finite else 0.0
    spread = median(abs(reading - middle) for reading in finite) if finite else 0.0
    allowed = limit * max(spread, 1e-12 * abs(middle))
    return [
        rank for rank, reading in enumerate(values) if not (math.isfinite(reading) and abs(reading - middle) <= allowed)
    ]


def cross_check(
    compute: Callable[[Any], Sequence[Tensor]], mine: Any, before: Any, group: dist.ProcessGroup | None = None
) -> list[int]:
    """Let every rank compute its own microbatch and that of the previous rank. Returns the ranks that disagree with
    both neighbours, or, if there are none, all that disagree with one.

    `compute` gives, for example, the gradients of a microbatch, and must give the same bits on healthy ranks. With
    three or more ranks, a rank that always miscalculates is named. One that did so once is one of the two ranks
    returned. If several ranks miscalculate, a healthy rank between two of them disagrees with both, and is named too. A
    rank that did so once is not named beside one that always does. So check again once the named ranks are replaced.
    The price is one more microbatch, so check every few hundred steps.
    """
    own, other = _gather([checksum(compute(mine)), checksum(compute(before))], group)
    differs = [other[rank] != own[rank - 1] for rank in range(len(own))]  # rank, and the one before it
    pairs = [{(rank - 1) % len(own), rank} for rank, unequal in enumerate(differs) if unequal]
    seen = Counter(rank for pair in pairs for rank in pair)
    return sorted(rank for rank, count in seen.items() if count == max(seen.values()))


def cross_check_cost(ranks: int, link: Link, seconds: float) -> Cost:
    """Return the cost of `cross_check` if a microbatch takes `seconds`: two microbatches, and an all-gather of two
    words."""
    gather = ring_all_gather_cost(2 * ranks, _WORD, ranks, link)
    return Cost(gather.bytes, gather.messages, 2 * seconds + gather.seconds)


def _gather(words: Sequence[int], group: dist.ProcessGroup | None) -> list[list[int]]:
    """Each word of all ranks, in the order of ranks."""
    here = torch.tensor(words, dtype=torch.int64)
    everyone = here.new_empty(dist.get_world_size(group) * len(words))
    dist.all_gather_into_tensor(everyone, here, group=group)
    return everyone.view(-1, len(words)).T.tolist()
