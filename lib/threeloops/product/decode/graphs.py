"""CUDA graphs for decoding: the hundreds of launches of a step become one.

A step of one token per sequence computes so little that a GPU waits for the host to launch the next kernel. A graph
records the launches once, with the addresses of their arguments, and is replayed as a whole (as in nano-vllm and vLLM).
So every argument has to stay at its address. A step's tensors are copied into tensors made for the graph. There is a
graph for each of a few batch sizes, and a batch is padded to the next larger one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from threeloops.models.gpt import GPT
from threeloops.product.decode.paged import Group, PagedCache, Rows, StepTensors

__all__ = ["DecodeGraphs"]


class DecodeGraphs:
    """Graphs of a model's decode step over `cache`, for 1, 2, 4 … `largest` sequences, each captured when first needed.

    Larger steps run without a graph. Raises ValueError for a cache that is not on a GPU, or whose heads the
    paged-attention kernel cannot attend.
    """

    def __init__(self, model: GPT, cache: PagedCache, largest: int = 64):
        if cache.device.type != "cuda" or not cache.kernel:
            raise ValueError(
                f"a cache on {cache.device}: expected one on a CUDA device that the paged-attention kernel attends, "
                "since only its launches can be captured; leave graphs=False elsewhere"
            )
        self._model = model
        self._cache = cache
        self._largest = largest
        self._captured: dict[int, tuple[torch.cuda.CUDAGraph, StepTensors, Tensor]] = {}

    def hidden(self, chunks: Sequence[Rows]) -> Tensor:
        """Compute what `PagedCache.hidden` does, for chunks of one row each. The next call overwrites the result."""
        if len(chunks) > self._largest:
            return self._cache.hidden(self._model, chunks)
        step = self._cache.prepare(chunks)
        self._cache.zero(step.fresh)
        bucket = 1 << (len(chunks) - 1).bit_length()
        if bucket not in self._captured:
            self._captured[bucket] = self._capture(bucket, step)
        graph, static, result = self._captured[bucket]
        _fill(static, step)
        graph.replay()
        return result[: len(chunks)]

    def _capture(self, bucket: int, step: StepTensors) -> tuple[torch.cuda.CUDAGraph, StepTensors, Tensor]:
        """Capture a graph with `step` as an example. The replay writes what `step` writes into the cache again."""
        static = _static(bucket, -(-self._model.config.max_sequence // self._cache.block_size), self._cache.device)
        _fill(static, step)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(
            side
        ):  # libraries and kernels set themselves up in the first run, which no graph may hold
            self._cache.run(self._model, static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = self._cache.run(self._model, static)
        return graph, static, result


def _static(rows: int, blocks: int, device: torch.device) -> StepTensors:
    """Return tensors at fixed addresses, for steps of up to `rows` sequences of up to `blocks` blocks."""
    tokens, positions, slots, lengths = torch.zeros(4, rows, dtype=torch.long, device=device).unbind()
    tables = torch.zeros(rows, blocks, dtype=torch.long, device=device)
    return StepTensors(tokens, positions, slots, [], [Group(0, tables, 1, lengths, None)], None)


def _fill(static: StepTensors, step: StepTensors) -> None:
    """Copy a step in. Remaining rows repeat its first row, and write the same values."""
    (mine,) = static.groups
    (theirs,) = step.groups
    rows, blocks = theirs.tables.shape
    mine.tables[:rows, :blocks] = theirs.tables
    mine.tables[rows:, :blocks] = theirs.tables[0]
    for name in ("tokens", "positions", "slots"):
        getattr(static, name)[:rows] = getattr(step, name)
        getattr(static, name)[rows:] = getattr(step, name)[0]
    assert mine.lengths is not None and theirs.lengths is not None, "both are attended by the kernel"
    mine.lengths[:rows] = theirs.lengths
    mine.lengths[rows:] = theirs.lengths[0]
