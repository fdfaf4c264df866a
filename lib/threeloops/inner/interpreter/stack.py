"""Find the kernel among the frames of an interpreted launch."""

import sys
from pathlib import Path
from types import FrameType

__all__ = ["kernel_frame", "kernel_line"]

_MACHINERY = ("interpreter", "launches", "meter")
"""Packages of `inner` whose frames lie above a kernel's frame. The kernels themselves are in another package."""


def kernel_frame() -> FrameType | None:
    """Return the innermost frame that belongs neither to Triton nor to this library's machinery."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _internal[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


def kernel_line() -> str:
    """Return a place for a message: `line 9 of softmax_kernel`."""
    frame = kernel_frame()
    return f"line {frame.f_lineno} of {frame.f_code.co_name}" if frame else "an unknown line"


class _Internal(dict[str, bool]):
    """Whether a file belongs to Triton or to this library's machinery, found once per file."""

    def __missing__(self, file: str) -> bool:
        import triton

        path = Path(file)
        inner = Path(__file__).parent.parent
        folders = (*(inner / name for name in _MACHINERY), Path(triton.__file__).parent)
        self[file] = any(folder in path.parents for folder in folders)
        return self[file]


_internal = _Internal()
