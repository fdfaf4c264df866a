"""Drawings for the labs, a folder per loop of the course, each with the small exact model that it shows.

The folder `measured` has those of times that NVIDIA measured, for all loops.

A lab that asks for one of these models lists the module among those it withholds.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.lab.drawings.product.batches import block_maps, draw_block_map, draw_chunks, draw_steps
    from threeloops.lab.drawings.product.fleet import draw_day, draw_roll_over, roll_over
    from threeloops.lab.drawings.training.buckets import Layer, draw_buckets, fill_buckets
    from threeloops.lab.drawings.training.experts import (
        draw_degrees,
        draw_dropped,
        draw_exchange,
        draw_expert_load,
        expert_load,
    )
    from threeloops.lab.drawings.training.failures import (
        draw_accounts,
        draw_delay,
        draw_log,
        draw_new_parts,
        log_account,
        travelling,
    )
    from threeloops.lab.drawings.training.microbatches import draw_flight, timeline_of
    from threeloops.lab.drawings.training.power_cut import draw_power_cut, power_cuts
    from threeloops.lab.drawings.training.ring import draw_ring, ring_steps
else:
    import_on_demand(__name__)

__all__ = [
    "Layer", "block_maps", "draw_accounts", "draw_block_map", "draw_buckets", "draw_chunks", "draw_day", "draw_degrees",
    "draw_delay", "draw_dropped", "draw_exchange", "draw_expert_load", "draw_flight", "draw_log", "draw_new_parts",
    "draw_power_cut", "draw_ring", "draw_roll_over", "draw_steps", "expert_load", "fill_buckets", "log_account",
    "power_cuts", "ring_steps", "roll_over", "timeline_of", "travelling",
]  # fmt: skip
