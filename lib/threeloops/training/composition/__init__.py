"""Several kinds of parallelism at once, each along an axis of one mesh.

>>> trainer = ParallelGPT(GPTConfig.tiny(), Mesh(pp=2, dp=2, tp=2), microbatches=4)
>>> trainer.step(tokens, targets)      # those of this data-parallel rank; the mean loss, on the last stage
>>> optimizer = torch.optim.AdamW(trainer.parameters())

`python -m threeloops.training.cluster threeloops.training.composition.demo:main` under `torchrun` or `srun` trains one
on real processes.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.composition.parallel_gpt import ParallelGPT
else:
    import_on_demand(__name__)

__all__ = ["ParallelGPT"]
