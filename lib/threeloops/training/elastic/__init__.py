"""Elastic training: failure made routine.

- `goodput/` says what failures cost, and how often to save: in closed form, in simulation, and in published runs.
- `detection/` finds what is wrong: who holds up whom (`Watchdog`), silent corruption (`odd_ranks`, `cross_check`), and
  a machine that gives other losses than before (`run_canary`).
- `recovery/` continues the training: in the same processes with the ranks that are left (`train_through_losses`), with
  a fault policy in two hooks (`GuardedOptimizer`), from storage or the memory of peers, or by a restart
  (`run_with_restarts`).
- Votes, checksums, copies in the memory of peers and `Grace.agreed` send tensors of the CPU. So they need gloo beside
  NCCL: `init_process_group("cpu:gloo,cuda:nccl")` chooses the backend by each tensor's device.
- This folder itself handles announced ends (`Grace`, and `requeue.sh` for Slurm). It also has faults with which to try
  all of this, and a program that shows it on real processes (`demo`).

>>> with Grace() as grace:
...     for number in range(done, steps):
...         optimizer.zero_grad()
...         loss(model(batch(number))).backward()
...         optimizer.step()
...         if grace.agreed():
...             save(number + 1)
...             sys.exit(RESUME_ME)
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.elastic.failures import (
        corrupt_gradient,
        flip_bit,
        flip_bit_in_file,
        full_disk,
        kill_once,
        slow_disk,
        torn_write,
    )
    from threeloops.training.elastic.grace import RESUME_ME, Grace
else:
    import_on_demand(__name__)

__all__ = [
    "RESUME_ME", "Grace", "corrupt_gradient", "flip_bit", "flip_bit_in_file", "full_disk", "kill_once", "slow_disk",
    "torn_write",
]  # fmt: skip
