"""Collectives built from point-to-point messages, each with its cost in bytes, messages and seconds.

>>> peers = TorchPeers()
>>> ring_all_reduce(peers, gradient, "avg")
>>> ring_all_reduce_cost(gradient.numel(), 4, peers.size, Link(latency=10e-6, bandwidth=1e9)).seconds
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.collectives.cost import Cost, Link
    from threeloops.training.collectives.halving import (
        halving_doubling_all_reduce,
        halving_doubling_all_reduce_cost,
        recursive_doubling_all_reduce,
        recursive_doubling_all_reduce_cost,
    )
    from threeloops.training.collectives.model import (
        ALL_REDUCES,
        AllReduce,
        best_algorithm,
        fastest,
        fit,
        predicted_seconds,
    )
    from threeloops.training.collectives.pairwise import (
        all_to_all,
        all_to_all_cost,
        one_shot_all_reduce,
        one_shot_all_reduce_cost,
        two_shot_all_reduce,
        two_shot_all_reduce_cost,
    )
    from threeloops.training.collectives.peers import Peers, Subset, TorchPeers
    from threeloops.training.collectives.ring import (
        all_gather_chunks,
        hierarchical_all_reduce,
        hierarchical_all_reduce_cost,
        reduce_scatter_chunks,
        ring_all_gather,
        ring_all_gather_cost,
        ring_all_reduce,
        ring_all_reduce_cost,
        ring_reduce_scatter,
        ring_reduce_scatter_cost,
    )
    from threeloops.training.collectives.tree import (
        broadcast,
        broadcast_cost,
        naive_all_reduce,
        naive_all_reduce_cost,
        reduce,
        reduce_cost,
        tree_all_reduce,
        tree_all_reduce_cost,
    )
else:
    import_on_demand(__name__)

__all__ = [
    "ALL_REDUCES", "AllReduce", "Cost", "Link", "Peers", "Subset", "TorchPeers", "all_gather_chunks", "all_to_all",
    "all_to_all_cost", "best_algorithm", "broadcast", "broadcast_cost", "fastest", "fit", "halving_doubling_all_reduce",
    "halving_doubling_all_reduce_cost", "hierarchical_all_reduce", "hierarchical_all_reduce_cost", "naive_all_reduce",
    "naive_all_reduce_cost", "one_shot_all_reduce", "one_shot_all_reduce_cost", "predicted_seconds",
    "recursive_doubling_all_reduce", "recursive_doubling_all_reduce_cost", "reduce", "reduce_cost",
    "reduce_scatter_chunks", "ring_all_gather", "ring_all_gather_cost", "ring_all_reduce", "ring_all_reduce_cost",
    "ring_reduce_scatter", "ring_reduce_scatter_cost", "tree_all_reduce", "tree_all_reduce_cost", "two_shot_all_reduce",
    "two_shot_all_reduce_cost",
]  # fmt: skip
