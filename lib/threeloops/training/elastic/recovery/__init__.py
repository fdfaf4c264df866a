"""Recovery after ranks are lost: in the same processes with the survivors, or by a restart."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.elastic.recovery.members import Checkpoints, Members, Trainer, train_through_losses
    from threeloops.training.elastic.recovery.peer_memory import PeerMemory
    from threeloops.training.elastic.recovery.policy import GuardedOptimizer, Verdict, vote
    from threeloops.training.elastic.recovery.replicas import ReplicaGroups
    from threeloops.training.elastic.recovery.restarts import Attempt, recovery_seconds, run_with_restarts
else:
    import_on_demand(__name__)

__all__ = [
    "Attempt", "Checkpoints", "GuardedOptimizer", "Members", "PeerMemory", "ReplicaGroups", "Trainer", "Verdict",
    "recovery_seconds", "run_with_restarts", "train_through_losses", "vote",
]  # fmt: skip
