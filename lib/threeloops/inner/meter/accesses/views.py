"""Find the bytes of a storage that a view addresses.

These are the bytes of the view's own elements, not its span: `x[:, ::2]` does not address the columns that it skips,
and an expanded or overlapping view addresses the bytes of each element, even if it contains that element several times.
An access lies within a view if all its bytes do, whatever its type. So a kernel may read a uint8 view as float32.
"""

from functools import cached_property
from typing import Any

import numpy as np

__all__ = ["View"]


class View:
    """The elements of a strided tensor. Bytes are counted from the start of its storage.

    `low`, `high`: its first byte, and the one after its last; equal if it has no elements.
    """

    def __init__(self, tensor: Any) -> None:
        self.shape = tuple(tensor.shape)
        self.strides = tuple(tensor.stride())
        self.item = tensor.element_size()
        self.low = self.high = tensor.storage_offset() * self.item
        self._sizes = sorted((stride, size) for size, stride in zip(self.shape, self.strides, strict=True) if size != 1)
        if tensor.numel():
            self.high += (1 + sum(stride * (size - 1) for stride, size in self._sizes)) * self.item

    @cached_property
    def skips(self) -> bool:
        """Whether elements between the first and the last are not the view's."""
        reach = 0
        for stride, size in self._sizes:
            if stride > reach + 1:
                return True
            reach += stride * (size - 1)
        return False

    @cached_property
    def _elements(self) -> np.ndarray:
        """One bool for every element of the span: whether the view addresses it."""
        own = np.zeros((self.high - self.low) // self.item, bool)
        np.lib.stride_tricks.as_strided(own, self.shape, self.strides)[...] = True
        return own

    def outside(self, places: np.ndarray, itemsize: int) -> np.ndarray:
        """Mark the accesses, of `itemsize` bytes from the bytes `places` on, that leave the view: bool, one each."""
        relative = places - self.low
        outside = (relative < 0) | (places + itemsize > self.high)
        if self.skips and not outside.all():
            inside = relative[~outside]
            own = np.ones(len(inside), bool)
            for part in {*range(0, itemsize, self.item), itemsize - 1}:
                own &= self._elements[(inside + part) // self.item]
            outside[~outside] = ~own
        return outside

    def __str__(self) -> str:
        return f"shape {self.shape} with strides {self.strides}"
