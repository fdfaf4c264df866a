"""The least that an operation costs: bytes that must move and arithmetic that must be done.

Bytes are *compulsory* traffic between memory and chip: every input is read once, every output is written once, and what
lies between stays on the chip. A real kernel moves at least this much; the traffic meter counts how much more.
Arithmetic: an addition, multiplication, comparison, division, square root or exponential is 1, a multiply-add is 2.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.inner.costs.operations import (
        attention,
        elementwise,
        layernorm,
        matmul,
        saxpy,
        softmax,
        visible_pairs,
    )
    from threeloops.inner.costs.work import Work, require_positive
else:
    import_on_demand(__name__)

__all__ = [
    "Work", "attention", "elementwise", "layernorm", "matmul", "require_positive", "saxpy", "softmax",
    "visible_pairs",
]  # fmt: skip
