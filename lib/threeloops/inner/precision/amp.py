"""Mixed precision: which operator runs in which dtype, a loss scaler, and float32 masters of 16-bit weights.

optimizer = MasterWeights(model.parameters(), lambda masters: torch.optim.SGD(masters, lr=0.1))
scaler = LossScaler()
for batch in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(model, batch)).backward()
    report = scaler.step(optimizer)         # skipped if a gradient was not finite
"""

from threeloops.inner.precision.autocast import GPU_POLICY, AutocastPolicy, Treatment, stored_as
from threeloops.inner.precision.loss_scaler import (
    SMALLEST_SCALE,
    LossScaler,
    ScalerState,
    ScaleUnderflow,
    StepReport,
    after_step,
)
from threeloops.inner.precision.master_weights import MasterWeights

__all__ = [
    "AutocastPolicy", "GPU_POLICY", "LossScaler", "MasterWeights", "SMALLEST_SCALE", "ScaleUnderflow",
    "ScalerState", "StepReport", "Treatment", "after_step", "stored_as",
]  # fmt: skip
