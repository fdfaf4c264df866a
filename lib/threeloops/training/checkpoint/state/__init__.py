"""The complete state of a training run, so that it can continue as if it had not stopped.

>>> training = TrainingState(model, optimizer, scheduler=scheduler, loader=loader)
>>> checkpointer = Checkpointer(LocalStore("run/checkpoints"), state=training.state())
>>> training.restore(checkpointer.load(training.template))

The optimizer's tensors are named after their parameters, so they are cut in the same way as the model. Therefore any
number of ranks with ZeRO, FSDP, tensor parallelism or pipeline parallelism can load what DDP saved.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.checkpoint.state.training_state import TrainingState
else:
    import_on_demand(__name__)

__all__ = ["TrainingState"]
