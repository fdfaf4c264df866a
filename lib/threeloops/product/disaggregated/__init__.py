"""Disaggregated serving: prompts are computed on some machines, answers are continued on others, and caches move.

>>> shape = CacheShape.of(config)                                      # the cache of a token: layers, and bytes in each
>>> handover = Handover(Link(latency=5e-6, bandwidth=50e9), shape, "layers")
>>> travel([ComputedChunk(0.0, 0.25, tokens=4000)], handover).exposed  # what decoding waits for, in seconds
>>> prefill, decode = prefill_rate(cost, 4000), decode_rate(cost, 4000, 200, tpot=0.02)
>>> split = best_split(8, prefill, decode)                             # 8 machines, by flow balance
>>> deployment = Deployment(cost, handover, Pool(split.prefill), Pool(split.decode))
>>> run = simulate(arrivals, deployment)
>>> run.metrics(SLO(ttft=1.0, tpot=0.02)).goodput, run.journeys[0].exposed
>>> aggregated = replace(deployment, prefill=Pool(0), decode=Pool(8))  # the same machines, each doing both

`policies/` decides: `routing.py` chooses machines, `ratio.py` how many there are of each kind, and `tiers.py` which
blocks stay where. `simulation.py` carries the decisions out in virtual time.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.disaggregated.description import Deployment, MachineFailure, Pool
    from threeloops.product.disaggregated.policies import (
        BlockUse,
        DecodeRouter,
        DecodeState,
        Eviction,
        PoolLoad,
        PrefillRouter,
        PrefillState,
        RoleChanges,
        Split,
        Tier,
        TieredCache,
        TierHits,
        best_split,
        by_reuse_and_cost,
        decode_batch,
        decode_rate,
        fewest_running,
        first_in,
        least_cost,
        longest_prefix,
        lru,
        most_room,
        prefill_rate,
        round_robin,
        shortest_queue,
    )
    from threeloops.product.disaggregated.record import DisaggregatedRun, Journey, MachineLife
    from threeloops.product.disaggregated.simulation import simulate
    from threeloops.product.disaggregated.transfer import (
        CacheShape,
        ComputedChunk,
        Handover,
        Part,
        Travel,
        Way,
        send,
        travel,
    )
    from threeloops.training.collectives.cost import Link
else:
    import_on_demand(__name__)

__all__ = [
    "BlockUse", "CacheShape", "ComputedChunk", "DecodeRouter", "DecodeState", "Deployment", "DisaggregatedRun",
    "Eviction", "Handover", "Journey", "Link", "MachineFailure", "MachineLife", "Part", "Pool", "PoolLoad",
    "PrefillRouter", "PrefillState", "RoleChanges", "Split", "Tier", "TierHits", "TieredCache", "Travel", "Way",
    "best_split", "by_reuse_and_cost", "decode_batch", "decode_rate", "fewest_running", "first_in", "least_cost",
    "longest_prefix", "lru", "most_room", "prefill_rate", "round_robin", "send", "shortest_queue", "simulate", "travel",
]  # fmt: skip
