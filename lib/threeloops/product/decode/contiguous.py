"""The plain cache of keys and values, one piece of memory per sequence, and the decode loop around it.

Without a cache, token n costs a pass over all n tokens before it. With one, it costs a pass over itself and reads the
keys and values of the others. The price is memory: this cache reserves the largest possible size for every sequence,
and the part that is never filled is wasted (Kwon et al. 2023, section 3.1). `batching/blocks.py` is the answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from threeloops.models.gpt import GPT, KeyValueCache
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.decode.sampling import choose
from threeloops.product.request import Sampling

__all__ = ["ContiguousCache", "bytes_per_token", "contiguous_waste", "generate", "paged_waste"]


class ContiguousCache:
    """Keys and values of all layers for `batch` sequences of at most `capacity` tokens, reserved at once.

    Sequences may differ in length. A sequence's token at position p is kept at place p. So a batch padded on the right
    leaves places without meaning, and each is overwritten before a query may see it. Raises ValueError naming the size
    that is not at least 1.
    """

    def __init__(
        self,
        config: GPTConfig,
        batch: int,
        capacity: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        for name, value in (("batch", batch), ("capacity", capacity)):
            if value < 1:
                raise ValueError(f"{name} = {value}: expected at least 1")
        self._window = config.sliding_window
        self._pool = torch.zeros(  # (layers, keys or values, batch, kv_heads, capacity, head_dim)
            (config.layers, 2, batch, config.kv_heads, capacity, config.head_dim), dtype=dtype, device=device
        )

    @property
    def nbytes(self) -> int:
        return self._pool.nbytes

    def hidden(self, model: GPT, tokens: Tensor, start: Tensor) -> Tensor:
        """Return what the model's head reads for `tokens`, (batch, new), the first at positions `start`, (batch,), and
        keep their keys and values. The result is (batch, new, width). Raises ValueError if they do not fit."""
        positions = start[:, None] + torch.arange(tokens.shape[1], device=start.device)
        if (longest := int(positions.max()) + 1) > (capacity := self._pool.shape[-2]):
            raise ValueError(f"{longest} tokens in a cache of capacity = {capacity}: reserve more, or generate fewer")
        keys = torch.arange(longest, device=start.device)
        visible = keys <= positions[:, :, None]
        if self._window is not None and self._window < longest:
            visible &= keys > positions[:, :, None] - self._window
        layers: list[KeyValueCache] = [
            _Layer(keys, values, positions, visible[:, None], longest) for keys, values in self._pool
        ]
        return model.hidden(tokens, start=start, caches=layers)


@dataclass(frozen=True)
class _Layer:
    """One layer of the cache during one step."""

    keys: Tensor  # (batch, kv_heads, capacity, head_dim)
    values: Tensor
    positions: Tensor  # (batch, new): where the new tokens belong
    visible: Tensor  # (batch, 1, new, longest): which keys each of them may see
    longest: int

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attention: Callable[..., Tensor]) -> Tensor:
        sequence = torch.arange(len(q), device=q.device)[:, None]
        self.keys[sequence, :, self.positions] = k.transpose(1, 2)
        self.values[sequence, :, self.positions] = v.transpose(1, 2)
        keys = self.keys[:, :, : self.longest]
        values = self.values[:, :, : self.longest]
        return functional.scaled_dot_product_attention(q, keys, values, attn_mask=self.visible, enable_gqa=True)


@torch.inference_mode()
def generate(
    model: GPT, prompts: Sequence[Sequence[int]], sampling: Sampling, *, cache: bool = True
) -> list[list[int]]:
    """Generate new tokens for every prompt, as one batch until the last of them ends (static batching).

    Without `cache` every token computes the whole batch again: the same tokens, for much more work. Raises ValueError,
    before anything is computed, for prompts that the model cannot compute.
    """
    if not prompts or not all(prompts):
        raise ValueError(f"prompts = {list(prompts)!r}: expected at least one prompt, and a token in each")
    if sampling.is_adjusted or sampling.logprobs is not None:
        raise ValueError("static batching has no penalties, biases, grammars or logprobs; use ModelRunner for these")
    capacity = max(map(len, prompts)) + sampling.max_tokens - 1  # the last token is never fed back
    if capacity > model.config.max_sequence:
        raise ValueError(
            f"{max(map(len, prompts))} tokens of prompt and max_tokens = {sampling.max_tokens} need {capacity} "
            f"positions: the model has max_sequence = {model.config.max_sequence}; shorten one of them"
        )
    weight = model.head.weight
    kv_cache = (
        ContiguousCache(model.config, len(prompts), capacity, dtype=weight.dtype, device=weight.device)
        if cache
        else None
    )
    sequences = [list(prompt) for prompt in prompts]
    outputs: list[list[int]] = [[] for _ in prompts]
    going = [True] * len(prompts)
    start = torch.zeros(len(prompts), dtype=torch.long, device=weight.device)
    new = sequences
    while True:
        hidden = _run(model, kv_cache, new, start)
        ends = torch.tensor([len(part) - 1 for part in new], device=weight.device)
        logits = model.head(hidden[torch.arange(len(new), device=weight.device), ends])
        positions = [len(sequence) for sequence in sequences]
        for place, token in enumerate(choose(logits, [sampling] * len(prompts), positions).tolist()):
            sequences[place].append(token)
            if going[place]:
                outputs[place].append(token)
                going[place] = token not in sampling.stop and len(outputs[place]) < sampling.max_tokens
        if not any(going):
            return outputs
        if kv_cache is None:
            new = sequences
        else:
            start = start + ends + 1
            new = [sequence[-1:] for sequence in sequences]


def _run(model: GPT, kv_cache: ContiguousCache | None, new: Sequence[Sequence[int]], start: Tensor) -> Tensor:
    """(batch, longest, width). Padding on the right: nothing before it sees it."""
    longest = max(map(len, new))
    tokens = torch.tensor([[*part, *[0] * (longest - len(part))] for part in new], device=start.device)
    return model.hidden(tokens) if kv_cache is None else kv_cache.hidden(model, tokens, start)


def bytes_per_token(config: GPTConfig, bytes_per_element: float = 2) -> float:
    """Return the bytes that a cache holds per token: a key and a value for each layer and key head."""
    return 2 * config.layers * config.kv_heads * config.head_dim * bytes_per_element


def contiguous_waste(lengths: Sequence[int], capacity: int) -> float:
    """The share of a contiguous cache that holds no token, if each sequence reserves `capacity`."""
    return 1 - sum(lengths) / (len(lengths) * capacity)


def paged_waste(lengths: Sequence[int], block_size: int) -> float:
    """The share of the blocks held that holds no token: the empty end of each sequence's last block."""
    return 1 - sum(lengths) / sum(-(-length // block_size) * block_size for length in lengths)
