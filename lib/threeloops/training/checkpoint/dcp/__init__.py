"""To and from torch.distributed.checkpoint.

>>> export_dcp(Checkpointer(LocalStore("run/checkpoints")).load(), "for_torch")
>>> Checkpointer(LocalStore("run/checkpoints")).save(0, read_dcp("from_torch"))
"""

from threeloops.training.checkpoint.dcp.conversion import export_dcp, read_dcp

__all__ = ["export_dcp", "read_dcp"]
