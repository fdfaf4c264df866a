"""All that a training run needs to go on as if it had not stopped.

>>> training = TrainingState(model, optimizer, scheduler=scheduler, loader=loader)
>>> checkpointer = Checkpointer(LocalStore("run/checkpoints"), state=training.state())
>>> training.restore(checkpointer.load(training.template))

Tensors of the optimizer have the names of their parameters, so whatever cuts the model cuts them too: what DDP saved,
ZeRO, FSDP, tensor-parallel and pipeline-parallel ranks of any number can load.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.checkpoint.state.training_state import TrainingState
else:
    import_on_demand(__name__)

__all__ = ["TrainingState"]
