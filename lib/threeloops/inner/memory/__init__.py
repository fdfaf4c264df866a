"""The memory of a training step: predicted (`account`), measured (`LiveStorage`), explained when it runs out."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.inner.memory.account import Account, account, draw_bars, draw_timeline
    from threeloops.inner.memory.sizes import TrainingStep
    from threeloops.inner.memory.timeline import KINDS, Change, MemoryBudgetExceeded, Storage, Timeline
    from threeloops.inner.memory.tracker import LiveStorage
else:
    import_on_demand(__name__)

__all__ = [
    "KINDS", "Account", "Change", "LiveStorage", "MemoryBudgetExceeded", "Storage", "Timeline", "TrainingStep",
    "account", "draw_bars", "draw_timeline",
]  # fmt: skip
