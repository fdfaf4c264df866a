"""How the elements of a strided view lie in memory."""

from collections.abc import Sequence

from msgspec.structs import replace

from threeloops.inner.replay.recordings.steps import StridedView

__all__ = ["is_dense", "rearranges", "repeats", "row_major", "without_axes", "without_ones"]


def without_ones(view: StridedView) -> StridedView:
    """Return the same elements without dimensions of size 1, whose strides mean nothing."""
    return without_axes(view, [axis for axis, size in enumerate(view.shape) if size == 1])


def without_axes(view: StridedView, axes: Sequence[int]) -> StridedView:
    """Return the tensor at index 0 of these axes."""
    remaining = [axis for axis in range(len(view.shape)) if axis not in axes]
    shape = tuple(view.shape[axis] for axis in remaining)
    strides = tuple(view.strides[axis] for axis in remaining)
    return replace(view, shape=shape, strides=strides)


def row_major(view: StridedView) -> StridedView:
    """Return a tensor of this shape with contiguous strides."""
    strides = []
    step = 1
    for size in reversed(view.shape):
        strides.append(step)
        step *= max(1, size)
    return replace(view, strides=tuple(reversed(strides)), offset=0)


def rearranges(to: StridedView, source: StridedView) -> bool:
    """Return whether a copy changes the order in which elements follow one another in memory.

    It keeps the order if each axis, from the target's innermost to its outermost, steps over everything that the axes
    inside it reach, in the target and in the source alike. Comparing the strides alone is not enough: a skewed view has
    descending strides and interleaved elements. An axis of stride 0 in the source repeats elements.
    """
    axes = [(t, s, n) for n, t, s in zip(to.shape, to.strides, source.strides, strict=True) if n > 1]
    written = read = 0
    for target, origin, size in sorted(axes):
        if target <= written or 0 < origin <= read:
            return True
        written += (size - 1) * target
        read += (size - 1) * origin
    return False


def repeats(view: StridedView) -> bool:
    """Return whether it holds elements several times, or its axes interleave like those of a skewed view."""
    return rearranges(view, view)


def is_dense(view: StridedView) -> bool:
    """Return whether its elements fill one stretch of memory, in any order of the axes."""
    return not repeats(view) and view.reach - view.offset == view.elements
