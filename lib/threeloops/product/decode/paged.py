"""Keys and values in blocks, and attention through block tables (Kwon et al. 2023).

All tokens of a step are rows of one batch, whichever request they belong to, so every matrix of the model is read once
per step. Only attention tells the requests apart. On a GPU, sequences with one row each go through the Triton kernel,
which reads the blocks in place. Elsewhere, the blocks of a few sequences of similar length are copied side by side and
attended together, padded to the longest.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching.simulated.steps import padded_together
from threeloops.product.decode.flat import FlatGPT

__all__ = ["Group", "PagedCache", "Rows", "StepTensors"]


@dataclass(frozen=True)
class Rows:
    """Consecutive tokens of one sequence: `tokens` stand at positions `start` and after it."""

    tokens: Sequence[int]
    start: int
    block_table: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class PagedCache:
    """The keys and values of all layers of a model: block b holds slots b · block_size to (b + 1) · block_size − 1.

    Blocks are given and taken back by a `BlockManager`; this class is told the tables. `kernel`: whether single rows
    are attended by the Triton kernel; by default on a GPU, if it has tiles for the heads. It knows no sliding window:
    with one, PyTorch attends, and reads only the blocks that the window reaches. Raises ValueError if both are wanted.
    """

    def __init__(
        self,
        config: GPTConfig,
        blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        kernel: bool | None = None,
    ):
        self.block_size = block_size
        self._shared = config.heads // config.kv_heads
        window = config.sliding_window
        self._window = window if window is not None and window < config.max_sequence else None
        if kernel and self._window is not None:
            raise ValueError(
                f"sliding_window = {window}: the paged-attention kernel reads all keys of a sequence; leave kernel=None"
            )
        # A slot's keys and values of all heads lie side by side: a block is one piece of memory, and one copy.
        self._pool = torch.zeros(
            (config.layers, blocks * block_size, 2, config.kv_heads, config.head_dim), dtype=dtype, device=device
        )
        self.kernel = self._window is None and _has_kernel(self._pool) if kernel is None else kernel
        self._layers = [(slots, slots.view(blocks, -1)) for slots in self._pool]
        self._places = torch.arange(blocks * block_size, device=device)
        self._masked_or_not = self._pool.new_tensor([-torch.inf, 0.0]).unbind()
        self.watch: Callable[[int], None] | None = None
        """Called in the middle of a step with the number of a layer, once its keys and values of the step are
        written."""

    @property
    def layers(self) -> range:
        return range(len(self._pool))

    @property
    def block_bytes(self) -> int:
        """The bytes of one block in one layer."""
        return self._layers[0][1][0].nbytes

    @property
    def device(self) -> torch.device:
        return self._pool.device

    @property
    def nbytes(self) -> int:
        return self._pool.nbytes

    def copy(self, copies: Iterable[tuple[int, int]]) -> None:
        """Copy whole blocks, each (source, destination)."""
        for source, destination in copies:
            self._block(destination).copy_(self._block(source))

    def read_blocks(self, blocks: Sequence[int], layers: range | None = None) -> memoryview:
        """Return a copy of whole blocks in `layers`, by default all of them. A layer's blocks lie side by side in the
        given order, and one layer follows the other."""
        chosen = self._of_layers(layers)[:, list(blocks)].contiguous().cpu()
        return memoryview(chosen.flatten().view(torch.uint8).numpy())

    def write_blocks(
        self, blocks: Sequence[int], data: bytes | bytearray | memoryview, layers: range | None = None
    ) -> None:
        """Write what `read_blocks` returned into these blocks. Raises ValueError if it is not as many bytes as they
        have."""
        places = self._of_layers(layers)
        expected = len(places) * len(blocks) * self.block_bytes
        if len(data) != expected:
            raise ValueError(
                f"{len(data)} bytes for {len(blocks)} blocks in {len(places)} layers: expected {expected}, as a block "
                f"has {self.block_bytes} bytes per layer"
            )
        if expected:
            numbers = torch.frombuffer(data, dtype=torch.uint8).view(self._pool.dtype).to(self.device)
            places[:, list(blocks)] = numbers.view(len(places), len(blocks), -1)

    def hidden(self, model: GPT | FlatGPT, chunks: Sequence[Rows]) -> Tensor:
        """Compute what the model's head reads for every row of `chunks`, in their order, (rows, width).

        The cache keeps the rows' keys and values.
        """
        step = self.prepare(chunks)
        self.zero(step.fresh)
        hidden = self.run(model, step)
        return hidden if step.order is None else hidden[step.order]

    def zero(self, blocks: Sequence[int]) -> None:
        """Zero whole blocks, before a new holder writes them.

        Otherwise a number that the last holder left would reach the new one even through a mask if it is not finite,
        because 0 · NaN is NaN.
        """
        if blocks:
            self._pool.view(len(self._pool), -1, self.block_size, *self._pool.shape[2:])[:, list(blocks)] = 0

    def forget(self, block_table: Sequence[int], start: int, end: int) -> None:
        """Zero positions `start` to `end` of one sequence, for example of guesses that gave nothing finite."""
        self._pool[:, [self._slot(block_table, position) for position in range(start, end)]] = 0

    def run(self, model: GPT | FlatGPT, step: "StepTensors") -> Tensor:
        """Pass the rows of `step` through the model, and return (rows, width) in the step's order.

        On a GPU it waits for nothing.
        """
        watch = self.watch
        layers = [
            _Layer(slots, blocks, step, None if watch is None else partial(watch, layer))
            for layer, (slots, blocks) in enumerate(self._layers)
        ]
        return model.hidden(step.tokens[:, None], start=step.positions, caches=layers)[:, 0]

    def prepare(self, chunks: Sequence[Rows]) -> "StepTensors":
        """Make the tensors that a pass over `chunks` needs."""
        device = self._pool.device
        size = self.block_size
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        fresh: list[int] = []
        rows = []
        counts = [len(chunk.tokens) for chunk in chunks]
        groups = padded_together(counts, [len(self._seen(chunk)) for chunk in chunks], unpadded=1 if self.kernel else 0)
        for group in groups:
            for member in group:
                chunk = chunks[member]
                rows.append((member, len(tokens)))
                tokens += chunk.tokens
                positions += range(chunk.start, chunk.end)
                slots += [self._slot(chunk.block_table, position) for position in range(chunk.start, chunk.end)]
                fresh += chunk.block_table[-(-chunk.start // size) : -(-chunk.end // size)]
        order = None
        if any(member != place for place, (member, _) in enumerate(rows)):
            order = torch.tensor(
                [row for member, first in sorted(rows) for row in range(first, first + len(chunks[member].tokens))],
                device=device,
            )
        of_rows = torch.tensor([tokens, positions, slots], device=device)
        first_row = dict(rows)
        made = [self._group(first_row[group[0]], [chunks[member] for member in group], of_rows[1]) for group in groups]
        return StepTensors(of_rows[0], of_rows[1], of_rows[2], fresh, made, order)

    def _of_layers(self, layers: range | None) -> Tensor:
        """The pool as (layers, blocks, elements of a block)."""
        chosen = self.layers if layers is None else layers
        return self._pool[chosen.start : chosen.stop].flatten(2).view(len(chosen), len(self._layers[0][1]), -1)

    def _block(self, block: int) -> Tensor:
        return self._pool[:, block * self.block_size : (block + 1) * self.block_size]

    def _slot(self, block_table: Sequence[int], position: int) -> int:
        return block_table[position // self.block_size] * self.block_size + position % self.block_size

    def _seen(self, chunk: Rows) -> range:
        """Places in a chunk's table of the blocks that its rows may see."""
        first = 0 if self._window is None else max(0, chunk.start - self._window + 1) // self.block_size
        return range(first, -(-chunk.end // self.block_size))

    def _group(self, first: int, chunks: Sequence[Rows], positions: Tensor) -> "Group":
        device = self._pool.device
        count = len(chunks[0].tokens)
        positions = positions[first : first + len(chunks) * count]
        seen = [self._seen(chunk) for chunk in chunks]
        used = [chunk.block_table[span.start : span.stop] for chunk, span in zip(chunks, seen, strict=True)]
        blocks = max(map(len, used))
        # Short tables are padded with a block of their own, whose keys are masked.
        tables = torch.tensor([(*table, *[table[0]] * (blocks - len(table))) for table in used], device=device)
        if self.kernel and count == 1:
            return Group(first, tables, 1, positions + 1, None)
        last = positions.view(len(chunks), 1, count, 1)
        keys = self._places[: blocks * self.block_size]
        if self._window is None:
            hidden = keys > last
        else:
            keys = keys + torch.tensor([[[[span.start * self.block_size]]] for span in seen], device=device)
            hidden = (keys > last) | (keys <= last - self._window)
        mask = torch.where(hidden, *self._masked_or_not)
        if count > 1:  # each of a row's query heads that share a key head has the row's own mask
            mask = mask.repeat_interleave(self._shared, 2)
        room = self._pool.new_empty(tables.numel(), self._layers[0][1].shape[1])
        keys, values = room.view(len(chunks), -1, *self._pool.shape[2:]).transpose(1, 3).unbind(2)
        return Group(first, tables, count, None, mask, _Copies(tables.flatten(), room, keys, values))


@dataclass(frozen=True)
class StepTensors:
    """The tensors that all layers of one step share. Rows are in the order of the groups."""

    tokens: Tensor  # (rows,)
    positions: Tensor
    slots: Tensor  # where each row's key and value belong
    fresh: list[int]  # blocks that nobody has written since they were given
    groups: Sequence["Group"]
    order: Tensor | None  # (rows,): where the rows of the chunks are, if it is not their own order


@dataclass(frozen=True)
class Group:
    """Chunks that are attended together: `count` rows each, from row `first` of the step."""

    first: int
    tables: Tensor  # (chunks, blocks)
    count: int
    lengths: Tensor | None  # (chunks,): how many keys there are, where the kernel attends
    mask: Tensor | None  # (chunks, 1, queries, keys): 0 for the keys that a query may see, else −∞; where PyTorch does
    copies: "_Copies | None" = None  # where PyTorch does

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + len(self.tables) * self.count)


@dataclass(frozen=True)
class _Copies:
    """Room for the blocks of a group, side by side. Every layer of a step fills it anew."""

    blocks: Tensor  # the blocks' numbers, chunk by chunk
    room: Tensor  # (blocks, elements of a block)
    keys: Tensor  # the same memory, (chunks, kv_heads, keys, head_dim)
    values: Tensor


def _has_kernel(pool: Tensor) -> bool:
    if pool.device.type != "cuda":
        return False
    from threeloops.inner.kernels.attention.paged_attention import HEAD_DIMS

    return pool.shape[-1] in HEAD_DIMS and pool.dtype in (torch.float16, torch.bfloat16, torch.float32)


@dataclass(slots=True)
class _Layer:
    """One layer of the cache during one step. `GPT` calls it in place of its own attention."""

    slots: Tensor  # (slots, keys or values, kv_heads, head_dim)
    blocks: Tensor  # the same memory, (blocks, elements of a block)
    step: StepTensors
    written: Callable[[], None] | None = None  # called once the step's keys and values are in their slots

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attention: Callable[..., Tensor]) -> Tensor:
        """q (rows, heads, 1, head_dim), k and v (rows, kv_heads, 1, head_dim): each row is a sequence to the model."""
        return self.attend_rows(q[:, :, 0], torch.cat((k, v), 1)[:, :, 0])[:, :, None]

    def attend_rows(self, q: Tensor, k_and_v: Tensor) -> Tensor:
        """Compute the same as `RowCache.attend_rows`."""
        self.slots.index_copy_(0, self.step.slots, k_and_v.view(-1, *self.slots.shape[1:]))
        if self.written is not None:
            self.written()
        if len(self.step.groups) == 1:
            return self._attended(q, self.step.groups[0])
        return torch.cat([self._attended(q[group.rows], group) for group in self.step.groups])

    def _attended(self, q: Tensor, group: Group) -> Tensor:
        return self._by_kernel(q, group) if group.copies is None else self._by_copy(q, group, group.copies)

    def _by_copy(self, q: Tensor, group: Group, copies: _Copies) -> Tensor:
        torch.index_select(self.blocks, 0, copies.blocks, out=copies.room)
        chunks, kv_heads = copies.keys.shape[:2]
        # To attention, query heads that share a key head are just more rows of that head.
        if group.count == 1:  # a step of decoding, whose operators cost more than what they compute
            heads = q.view(chunks, kv_heads, -1, q.shape[-1])
            attended = functional.scaled_dot_product_attention(heads, copies.keys, copies.values, attn_mask=group.mask)
            return attended.reshape(q.shape)
        rows = q.view(chunks, group.count, kv_heads, -1, q.shape[-1]).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(
            rows.flatten(2, 3), copies.keys, copies.values, attn_mask=group.mask
        )
        return attended.view(rows.shape).transpose(1, 2).reshape(q.shape)

    def _by_kernel(self, q: Tensor, group: Group) -> Tensor:
        from threeloops.inner.kernels.attention.paged_attention import paged_attention

        keys, values = self.slots.unbind(1)
        block_size = len(self.slots) // len(self.blocks)
        return paged_attention(q, keys, values, group.tables, group.lengths, block_size)
