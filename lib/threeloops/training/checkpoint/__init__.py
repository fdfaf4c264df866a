"""Checkpoints that lose nothing: sharded, durable, verified, incremental, asynchronous, and loadable by other ranks.

>>> checkpointer = Checkpointer(LocalStore("run/checkpoints"), state=training.state())
>>> loaded = checkpointer.load(training.template)
>>> training.restore(loaded)
>>> stall = checkpointer.save_async(step, training.state())
>>> checkpointer.wait()

`training` is a `TrainingState` (`checkpoint/state/`): model, optimizer, scheduler, scaler, loader and random states.
Any mapping from names to tensors and plain values can be saved in its place.

Names are imported when they are first used: `checkpoint.crash` also works where a lab withholds the rest.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.checkpoint.checkpointer import Checkpointer, Loaded, Stall
    from threeloops.training.checkpoint.format import CheckpointError, CorruptCheckpointError
    from threeloops.training.checkpoint.pieces import Sharded, flat_range, sharded_along
    from threeloops.training.checkpoint.store import LocalStore, ObjectStore, Store
else:
    import_on_demand(__name__)

__all__ = [
    "CheckpointError", "Checkpointer", "CorruptCheckpointError", "Loaded", "LocalStore", "ObjectStore", "Sharded",
    "Stall", "Store", "flat_range", "sharded_along",
]  # fmt: skip
