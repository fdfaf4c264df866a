"""The decisions of a disaggregated deployment: which machines, how many of each kind, and which blocks stay where.

All of them are pure functions, except for `TieredCache`, which keeps the blocks that its policy values.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.disaggregated.policies.ratio import (
        PoolLoad,
        RoleChanges,
        Split,
        best_split,
        decode_batch,
        decode_rate,
        prefill_rate,
    )
    from threeloops.product.disaggregated.policies.routing import (
        DecodeRouter,
        DecodeState,
        PrefillRouter,
        PrefillState,
        fewest_running,
        least_cost,
        longest_prefix,
        most_room,
        round_robin,
        shortest_queue,
    )
    from threeloops.product.disaggregated.policies.tiers import (
        BlockUse,
        Eviction,
        Tier,
        TieredCache,
        TierHits,
        by_reuse_and_cost,
        first_in,
        lru,
    )
else:
    import_on_demand(__name__)

__all__ = [
    "BlockUse", "DecodeRouter", "DecodeState", "Eviction", "PoolLoad", "PrefillRouter", "PrefillState", "RoleChanges",
    "Split", "Tier", "TierHits", "TieredCache", "best_split", "by_reuse_and_cost", "decode_batch", "decode_rate",
    "fewest_running", "first_in", "least_cost", "longest_prefix", "lru", "most_room", "prefill_rate", "round_robin",
    "shortest_queue",
]  # fmt: skip
