"""Ranges that mark what part of the program an operator belongs to, in profiles and in Nsight Systems."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def annotate(name: str) -> Iterator[None]:
    """Mark a range of the program in the profile and, where there is CUDA, as an NVTX range for Nsight Systems."""
    import torch

    with torch.profiler.record_function(name):
        if not torch.cuda.is_available():
            yield
            return
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()


@contextmanager
def annotate_modules(model: "nn.Module") -> Iterator[None]:
    """Mark the forward pass of every named submodule of `model` ("layer1.0.conv2") while the context lasts.

    Not for compiled models: hooks would change what is compiled.
    """
    import torch

    open_ranges: list = []
    handles = []
    for path, module in model.named_modules():
        if not path:
            continue

        def enter(module, inputs, path=path):
            open_ranges.append(torch.profiler.record_function(path))
            open_ranges[-1].__enter__()

        def leave(module, inputs, output):
            open_ranges.pop().__exit__(None, None, None)

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
