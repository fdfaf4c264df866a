"""Drawings for the labs on parallel training and on serving, each with the small exact model that it shows.

A lab that asks for one of these models lists the module among those it withholds.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.lab.drawings.batches import block_maps, draw_block_map, draw_steps
    from threeloops.lab.drawings.buckets import Layer, draw_buckets, fill_buckets
    from threeloops.lab.drawings.experts import draw_exchange, draw_expert_load, expert_load
    from threeloops.lab.drawings.failures import draw_log, draw_new_parts, travelling
    from threeloops.lab.drawings.fleet import draw_day, draw_roll_over, roll_over
    from threeloops.lab.drawings.microbatches import draw_flight
    from threeloops.lab.drawings.power_cut import draw_power_cut, power_cuts
    from threeloops.lab.drawings.ring import draw_ring, ring_steps
else:
    import_on_demand(__name__)

__all__ = [
    "Layer", "block_maps", "draw_block_map", "draw_buckets", "draw_day", "draw_exchange", "draw_expert_load",
    "draw_flight", "draw_log", "draw_new_parts", "draw_power_cut", "draw_ring", "draw_roll_over", "draw_steps",
    "expert_load", "fill_buckets", "power_cuts", "ring_steps", "roll_over", "travelling",
]  # fmt: skip
