"""Export a model with `torch.export` as two graphs that need no Python, prefill and decode, for ONNX Runtime etc.

A graph cannot keep a cache between calls, so keys and values go in and come out. Prefill takes tokens and returns the
cache and the last token's logits. Decode takes a token and a cache, and returns the next logits and the next cache. All
sequences of a batch have the same length. Batch size and length are free.

TorchScript (`torch.jit.script`), which older services load, is deprecated in favour of `torch.export`.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional

from threeloops.models.gpt import GPT

__all__ = ["export_decode", "export_prefill", "write_onnx"]


def export_prefill(model: GPT) -> ExportedProgram:
    """(tokens (batch, length)) → (logits (batch, vocabulary), keys, values).

    keys and values are (layers, batch, kv_heads, length, head_dim).
    """
    batch = Dim("batch")
    length = Dim("length", max=model.config.max_sequence)
    tokens = torch.zeros(2, 5, dtype=torch.long, device=model.head.weight.device)
    return torch.export.export(_Prefill(model).eval(), (tokens,), dynamic_shapes=({0: batch, 1: length},))


def export_decode(model: GPT) -> ExportedProgram:
    """(tokens (batch, 1), keys, values) → (logits (batch, vocabulary), keys, values), each one token longer."""
    batch = Dim("batch")
    past = Dim("past", max=model.config.max_sequence - 1)
    config = model.config
    weight = model.head.weight
    tokens = torch.zeros(2, 1, dtype=torch.long, device=weight.device)
    cache = torch.zeros(config.layers, 2, config.kv_heads, 5, config.head_dim, dtype=weight.dtype, device=weight.device)
    shapes = {0: batch}, {1: batch, 3: past}, {1: batch, 3: past}
    return torch.export.export(_Decode(model).eval(), (tokens, cache, cache.clone()), dynamic_shapes=shapes)


def write_onnx(program: ExportedProgram, path: Path) -> None:
    """Write a program of either kind as one ONNX file. Inputs and outputs have the names that are used above, and the
    outputs of decode end in "_after". Needs the packages onnx and onnxscript.
    """
    names = list(program.graph_signature.user_inputs)
    after = "_after" if "keys" in names else ""
    torch.onnx.export(
        program,
        (),
        path,
        input_names=names,
        output_names=["logits", f"keys{after}", f"values{after}"],
        external_data=False,
        dynamo=True,
        verbose=False,
    )


class _Recorded:
    """One layer's cache: the incoming keys and values, if any, followed by the new ones."""

    def __init__(self, window: int | None, keys: Tensor | None = None, values: Tensor | None = None):
        self.window = window
        self.keys = keys
        self.values = values

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attention: Callable[..., Tensor]) -> Tensor:
        batch, heads, _, head_dim = q.shape
        kv_heads = k.shape[1]
        if self.keys is None or self.values is None:
            self.keys = k
            self.values = v
            # By index, since torch 2.11 cannot export `repeat_interleave` for every length.
            head = torch.arange(heads, device=q.device) // (heads // kv_heads)
            keys, values = (tensor.index_select(1, head) for tensor in (k, v))
            if self.window is None:
                return functional.scaled_dot_product_attention(q, keys, values, is_causal=True)
            back = _places_back(q, q)
            return functional.scaled_dot_product_attention(
                q, keys, values, attn_mask=(back >= 0) & (back < self.window)
            )
        self.keys, self.values = torch.cat((self.keys, k), 2), torch.cat((self.values, v), 2)
        # One token sees all keys, or those in the window. The query heads that share a key head are rows of it: not
        # every runtime knows groups.
        grouped = q.reshape(batch, kv_heads, heads // kv_heads, head_dim)
        visible = None if self.window is None else _places_back(q, self.keys) < self.window
        return functional.scaled_dot_product_attention(grouped, self.keys, self.values, attn_mask=visible).reshape(
            q.shape
        )


def _places_back(q: Tensor, keys: Tensor) -> Tensor:
    """How many places before each query each key lies, (queries, keys). The queries belong to the last keys."""
    queries = torch.arange(keys.shape[2] - q.shape[2], keys.shape[2], device=q.device)
    return queries[:, None] - torch.arange(keys.shape[2], device=q.device)


class _Prefill(nn.Module):
    def __init__(self, model: GPT):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        config = self.model.config
        return _run(self.model, tokens, 0, [_Recorded(config.sliding_window) for _ in range(config.layers)])


class _Decode(nn.Module):
    def __init__(self, model: GPT):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        window = self.model.config.sliding_window
        caches = [_Recorded(window, *layer) for layer in zip(keys.unbind(0), values.unbind(0), strict=True)]
        return _run(self.model, tokens, keys.shape[3], caches)


def _run(model: GPT, tokens: Tensor, start: int, caches: list[_Recorded]) -> tuple[Tensor, Tensor, Tensor]:
    logits = model.head(model.hidden(tokens, start=start, caches=caches)[:, -1])
    keys, values = (torch.stack([getattr(cache, name) for cache in caches]) for name in ("keys", "values"))
    return logits, keys, values
