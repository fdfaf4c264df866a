"""Lanes of a load or store: the argument and view they point into, and how they lie relative to each other."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.inner.meter.accesses.patterns import SECTOR_BYTES, Pattern, Patterns
    from threeloops.inner.meter.accesses.spaces import ELSEWHERE, WORD, Space, Spaces, ordinal_of, tensors, unwrapped
    from threeloops.inner.meter.accesses.stretches import Stretches, apart
    from threeloops.inner.meter.accesses.views import View
else:
    import_on_demand(__name__)

__all__ = [
    "ELSEWHERE", "Pattern", "Patterns", "SECTOR_BYTES", "Space", "Spaces", "Stretches", "View", "WORD", "apart",
    "ordinal_of", "tensors", "unwrapped",
]  # fmt: skip
