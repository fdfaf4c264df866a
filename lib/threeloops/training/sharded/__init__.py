"""Sharded data parallelism: each rank has its own part of the batch, as with DDP, and only 1/ranks of the model states.

>>> zero = ZeroOptimizer(model, torch.optim.AdamW, stage=2, lr=1e-3)
>>> criterion(model(inputs), targets).backward()
>>> norm = zero.clip_grad_norm(1.0)
>>> zero.step()
>>> zero.zero_grad()

or, if the parameters are cut as well,

>>> fsdp = FSDP(model, units=model.blocks)
>>> optimizer = torch.optim.AdamW(fsdp.parameters(), lr=1e-3)
>>> criterion(fsdp(inputs), targets).backward()
>>> norm = fsdp.clip_grad_norm(1.0)
>>> optimizer.step()
>>> optimizer.zero_grad()
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.sharded.cost import ModelStates, bytes_sent, model_states
    from threeloops.training.sharded.deepspeed import (
        DeepSpeedConfigError,
        DeepSpeedSettings,
        LearningRate,
        LossScale,
        from_deepspeed_config,
    )
    from threeloops.training.sharded.fsdp import FSDP
    from threeloops.training.sharded.layerwise import LayerwiseOptimizer, assign_owners, layerwise_bytes
    from threeloops.training.sharded.live import LiveBytes
    from threeloops.training.sharded.optimizer import ZeroOptimizer
    from threeloops.training.sharded.reshard import reshard
else:
    import_on_demand(__name__)

__all__ = [
    "DeepSpeedConfigError", "DeepSpeedSettings", "FSDP", "LayerwiseOptimizer", "LearningRate", "LiveBytes", "LossScale",
    "ModelStates", "ZeroOptimizer", "assign_owners", "bytes_sent", "from_deepspeed_config", "layerwise_bytes",
    "model_states", "reshard",
]  # fmt: skip
