"""Expert parallelism: each token is computed by k of E experts, and each rank has E/n of them.

>>> router = Router(width, experts=8, k=2)
>>> layer = ExpertParallel(router, [make_expert(e) for e in own_experts(8, groups["ep"])], groups["ep"])
>>> y = x + layer(x)
>>> loss = criterion(y) + 0.01 * load_balancing_loss(layer.routing) + 0.001 * z_loss(layer.routing)
>>> layer.load.dropped, gather_load(layer.load, groups["ep"]).imbalance
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.expert_parallel.capacity import Load, expert_capacity, gather_load, keep_within_capacity
    from threeloops.training.expert_parallel.cost import all_to_all_bytes, balanced_all_to_all_bytes, counts_bytes
    from threeloops.training.expert_parallel.layer import ExpertParallel, exchange_rows, own_experts
    from threeloops.training.expert_parallel.placement import CopyRouter, Placement, count_copies, place_copies
    from threeloops.training.expert_parallel.router import Router, Routing, load_balancing_loss, z_loss
else:
    import_on_demand(__name__)

__all__ = [
    "CopyRouter", "ExpertParallel", "Load", "Placement", "Router", "Routing", "all_to_all_bytes",
    "balanced_all_to_all_bytes", "count_copies", "counts_bytes", "exchange_rows", "expert_capacity", "gather_load",
    "keep_within_capacity", "load_balancing_loss", "own_experts", "place_copies", "z_loss",
]  # fmt: skip
