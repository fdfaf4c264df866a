"""Three ways to make an integer of a real number: the only step of an encoding that can lose anything."""

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Rounding = Literal["nearest-even", "toward-zero", "stochastic"]


def round_to_integer(
    values: NDArray[np.float64], rounding: Rounding, generator: np.random.Generator | None
) -> NDArray[np.float64]:
    """Whole numbers for `values` ≥ 0 below 2⁵³, any shape.

    "nearest-even" takes the even one of two equally near; "toward-zero" cuts off; "stochastic" takes the upper one with
    the probability of the part that would be cut off, so that the mean over many draws is the value itself.
    Raises ValueError for an unknown rounding, and for a `generator` that is missing or would not be used.
    """
    if rounding not in get_args(Rounding):
        raise ValueError(f"rounding = {rounding!r}: expected one of {', '.join(get_args(Rounding))}")
    if (generator is not None) != (rounding == "stochastic"):
        needed = "a numpy Generator, such as np.random.default_rng(0)" if rounding == "stochastic" else "None"
        raise ValueError(f"generator = {generator}: expected {needed} for rounding {rounding!r}")
    if generator is None:
        return np.rint(values) if rounding == "nearest-even" else np.floor(values)
    below = np.floor(values)
    return below + (generator.random(values.shape) < values - below)
