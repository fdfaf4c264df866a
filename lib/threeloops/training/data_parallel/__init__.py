"""Data parallelism: every rank has the whole model and its own part of the batch, and gradients are averaged.

>>> seed_rank(0)
>>> ddp = DDP(build_model())
>>> seed_rank(0, dist.get_rank())
>>> loss = criterion(ddp(inputs), targets)
>>> loss.backward()
>>> norm = clip_grad_norm(ddp.parameters(), 1.0)
>>> optimizer.step()
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.data_parallel.buckets import assign_buckets
    from threeloops.training.data_parallel.clipping import clip_grad_norm, total_norm
    from threeloops.training.data_parallel.ddp import DDP, Bucket
    from threeloops.training.data_parallel.diloco import DiLoCo
    from threeloops.training.data_parallel.scaling import (
        DataParallelStep,
        Gradient,
        bucketed_step,
        overlapped_step,
        ring_all_reduce_ends,
        scaling_efficiency,
    )
    from threeloops.training.data_parallel.seeds import seed_rank
    from threeloops.training.data_parallel.stragglers import (
        StragglerDetector,
        batch_weights,
        expected_slowest,
        gather_seconds,
        proportional_batches,
    )
else:
    import_on_demand(__name__)

__all__ = [
    "Bucket", "DDP", "DataParallelStep", "DiLoCo", "Gradient", "StragglerDetector", "assign_buckets", "batch_weights",
    "bucketed_step", "clip_grad_norm", "expected_slowest", "gather_seconds", "overlapped_step", "proportional_batches",
    "ring_all_reduce_ends", "scaling_efficiency", "seed_rank", "total_norm",
]  # fmt: skip
