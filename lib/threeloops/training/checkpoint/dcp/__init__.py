"""Convert checkpoints to and from torch.distributed.checkpoint.

>>> export_dcp(Checkpointer(LocalStore("run/checkpoints")).load(), "for_torch")
>>> Checkpointer(LocalStore("run/checkpoints")).save(0, read_dcp("from_torch"))

To continue another program's run, convert its folder in one process. Then any number of ranks can load it.

>>> Checkpointer(LocalStore("run/checkpoints")).save(step, training_from_dcp("from_torch", training))
>>> training.restore(Checkpointer(LocalStore("run/checkpoints")).load(training.template))
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.checkpoint.dcp.conversion import export_dcp, read_dcp
    from threeloops.training.checkpoint.dcp.training import training_from_dcp
else:
    import_on_demand(__name__)

__all__ = ["export_dcp", "read_dcp", "training_from_dcp"]
