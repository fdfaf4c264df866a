"""DDP's buckets: the groups of gradients that share an all-reduce.

Many small all-reduces pay the latency of the link each time, and one large all-reduce cannot begin before the last
gradient exists. Gradients become ready in about the reverse order of registration, so buckets are filled in that order.
The first bucket is smaller, so that communication begins early (Li et al. 2020, "PyTorch Distributed", section 3.2).
"""

from collections.abc import Hashable, Sequence

__all__ = ["BUCKET_CAP_MB", "FIRST_BUCKET_MB", "assign_buckets"]

BUCKET_CAP_MB = 25.0
FIRST_BUCKET_MB = 1.0
"""torch's defaults, in MiB (torch/csrc/distributed/c10d/reducer.hpp)."""


def assign_buckets(
    sizes: Sequence[int],
    bucket_cap_mb: float = BUCKET_CAP_MB,
    first_bucket_mb: float = FIRST_BUCKET_MB,
    kinds: Sequence[Hashable] | None = None,
) -> list[list[int]]:
    """Return the indices of the gradients in each bucket, with buckets in the order in which they become full.

    Args:
        sizes: bytes of each gradient, in the order of registration.
        bucket_cap_mb: the size in MiB at which a bucket is closed, as in torch's `compute_bucket_assignment_by_size`.
            The gradient that reaches it is included, so a bucket can be larger, by less than one gradient.
        first_bucket_mb: the same for the first bucket, if it is smaller.
        kinds: gradients of different kinds (dtype and device) never share a bucket. Each kind has its own first bucket.
    """
    for name, cap in (("bucket_cap_mb", bucket_cap_mb), ("first_bucket_mb", first_bucket_mb)):
        if not cap > 0:
            raise ValueError(f"{name} = {cap}: expected a size in MiB above 0; a tiny one gives each gradient its own")
    kinds = [None] * len(sizes) if kinds is None else kinds
    filling: dict[Hashable, list[int]] = {}
    caps = dict.fromkeys(kinds, min(first_bucket_mb, bucket_cap_mb))
    closed = []
    for index in reversed(range(len(sizes))):
        bucket = filling.setdefault(kinds[index], [])
        bucket.append(index)
        if sum(sizes[i] for i in bucket) >= caps[kinds[index]] * 2**20:
            closed.append(filling.pop(kinds[index]))
            caps[kinds[index]] = bucket_cap_mb
    return sorted([*closed, *filling.values()], key=lambda bucket: bucket[-1], reverse=True)
