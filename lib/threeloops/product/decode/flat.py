"""A GPT's step of decoding as one flat loop of operators on this CPU, with the model's own weights.

A step for a few sequences computes so little that everything around the arithmetic counts. A model of 10 million
parameters has 25 products of matrices. Calling modules and small operators would take as long as the products. So this
module runs the layers in one loop, calls no modules there, and changes tensors in place where it can.

PyTorch passes float32 products to MKL. On AMD's processors MKL takes about twice as long as oneDNN. oneDNN reads a
matrix in tiles, so each matrix is copied ("packed") into that order once. PyTorch's compiler does the same when it
freezes a model. The first two matrices of an MLP are packed as one, because a product by oneDNN takes about 10 µs
before it reads a weight.

A single row is multiplied in another way (`_Columns`). It saves these 10 µs and reads the weights as fast as the memory
gives them: the 25 products take 0.8 ms on one thread and 0.5 ms on two, instead of 1.2 and 1.0 ms by oneDNN. Both ways
add up to 512 products of elements in the same order. So a row has the same bits no matter which rows are computed with
it, unless it has more than 1,024 elements. With MKL its bits depend on the other rows.

The price is memory, because the original weights are kept next to the copies.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from threeloops.models.gpt import GPT, Block, RMSNorm

__all__ = ["FlatGPT", "RowCache", "flattened"]

_SMALL = 1 << 21
"""Matrices of up to so many elements are also copied column by column."""
_TERMS = 512
"""A product with one row is made of sums of up to so many terms."""
_SUM = 0
"""The mode of `torch.embedding_bag` that adds the rows of a bag."""


class RowCache(Protocol):
    """The keys and values of one layer, for rows that may belong to different sequences."""

    def attend_rows(self, q: Tensor, k_and_v: Tensor) -> Tensor:
        """Keep the keys and values of the rows, and return what their queries attend to, (rows, heads, head_dim).

        `q` is (rows, heads, head_dim). `k_and_v` is (rows, 2·kv_heads, head_dim): the keys, then the values.
        """
        ...


def flattened(model: GPT) -> "GPT | FlatGPT":
    """Return `model` as a `FlatGPT`, or `model` itself if it must run as it is.

    It must if its weights are not float32 on an x86 CPU, if this PyTorch lacks oneDNN, or if a layer has hooks or is
    not what `GPT` makes: quantized, split between ranks, or with fused kernels.
    """
    return FlatGPT(model) if _has_packed_products() and _is_plain(model) else model


def _has_packed_products() -> bool:
    operations = torch.ops.mkldnn
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512", "AMX")
        and hasattr(operations, "_linear_pointwise")
        and hasattr(operations, "_reorder_linear_weight")
    )


def _is_plain(model: GPT) -> bool:
    """Tell whether every part is what `GPT` makes, and all weights can be packed and watched."""
    with torch.device("meta"):
        plain = GPT(model.config)
    kinds, own_kinds = ({name: type(part) for name, part in gpt.named_modules()} for gpt in (plain, model))
    names, own = (dict(gpt.named_parameters(remove_duplicate=False)) for gpt in (plain, model))
    return (
        model.config.kernels == "eager"
        and kinds == own_kinds
        and names.keys() == own.keys()
        and not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
        # PyTorch counts no versions of a weight made under torch.inference_mode(), so a change would go unnoticed.
        and all(w.device.type == "cpu" and w.dtype == torch.float32 and not w.is_inference() for w in own.values())
    )


class FlatGPT:
    """Takes a model's place in front of a `PagedCache`, without gradients.

    It reads the weights of the model, so it computes with what they hold at the time. It notices if a matrix is
    replaced or changed in place, but not a change through `.data`.
    """

    def __init__(self, model: GPT):
        self.config = model.config
        self.head = _Product(model.head)
        self._embedding = model.embedding
        self._rotation = model.rotation
        self._norm = _Norm(model.norm)
        self._layers = [_Layer(block) for block in model.blocks]

    def hidden(self, tokens: Tensor, *, start: Tensor, caches: Sequence[RowCache]) -> Tensor:
        """Return the head's input, (rows, 1, width), for `tokens`, (rows, 1), at positions `start`, (rows,)."""
        heads = self.config.heads
        kv_heads = self.config.kv_heads
        head_dim = self.config.head_dim
        shape = (-1, heads + 2 * kv_heads, head_dim)
        half = head_dim // 2
        rotated = heads + kv_heads
        cosines, sines = (values[:, 0] for values in self._rotation(start, 1))
        x = self._embedding(tokens)[:, 0]
        for layer, cache in zip(self._layers, caches, strict=True):
            every_head = layer.qkv(layer.attention_norm(x)).view(shape)
            q_and_k = every_head[:, :rotated]
            if layer.head_norms is not None:
                for norm, part in zip(layer.head_norms, q_and_k.split((heads, kv_heads), 1), strict=True):
                    part.copy_(norm(part))
            turned = q_and_k.roll(half, -1)
            q_and_k.mul_(cosines).addcmul_(turned, sines)
            attended = cache.attend_rows(every_head[:, :heads], every_head[:, heads:])
            x = layer.output(attended.reshape(len(x), -1)).add_(x)
            gate, up = layer.gate_and_up(layer.mlp_norm(x)).chunk(2, -1)
            x = layer.down(functional.silu(gate).mul_(up)).add_(x)
        return self._norm(x)[:, None]


class _Layer:
    """The products and norms of one layer."""

    def __init__(self, block: Block):
        attention = block.attention
        mlp = block.mlp
        self.attention_norm = _Norm(block.attention_norm)
        self.mlp_norm = _Norm(block.mlp_norm)
        self.qkv = _Product(attention.qkv)
        self.output = _Product(attention.output)
        self.gate_and_up = _Product(mlp.gate, mlp.up)
        self.down = _Product(mlp.down)
        self.head_norms = None
        if attention.query_norm is not None and attention.key_norm is not None:
            self.head_norms = _Norm(attention.query_norm), _Norm(attention.key_norm)


class _Product:
    """Linear layers that read the same input, as one product with copies of their weights.

    A layer among several must not have a bias.
    """

    def __init__(self, *linears: nn.Linear):
        self._owners = [linear._parameters for linear in linears]  # a replaced parameter is seen here
        self._made_of: list[tuple[Tensor, int]] = []  # the weights that were copied, and their versions
        self._packed: Tensor | None = None  # for several rows
        self._columns: _Columns | None = None  # for one row

    @property
    def weight(self) -> Tensor:
        """The weight of the first layer."""
        return self._owners[0]["weight"]

    def __call__(self, x: Tensor) -> Tensor:
        for owner, (weight, version) in zip(self._owners, self._made_of, strict=False):
            if owner["weight"] is not weight or weight._version != version:
                self._made_of = []
        if not self._made_of:
            self._forget()
        bias = self._owners[0]["bias"]
        if len(x) == 1 and self._is_small:
            if self._columns is None or self._columns.threads != torch.get_num_threads():
                self._columns = _Columns(self._weights())
            product = self._columns(x)
            return product if bias is None else product.add_(bias)
        if self._packed is None:
            # Without a batch size, oneDNN chooses a layout that suits any number of rows.
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weights(), None)
        return torch.ops.mkldnn._linear_pointwise.default(x, self._packed, bias, "none", [], "")

    def _forget(self) -> None:
        """Drop the copies, and note of which weights the next ones will be made."""
        self._packed = None
        self._columns = None
        self._made_of = [(owner["weight"], owner["weight"]._version) for owner in self._owners]
        self._is_small = sum(weight.numel() for weight, _ in self._made_of) <= _SMALL

    def _weights(self) -> Tensor:
        return torch.cat([weight for weight, _ in self._made_of]).detach()


class _Columns:
    """A copy of a matrix, column by column, for its products with one row.

    Such a product is a sum of the columns, weighted by the elements of the row. This is what PyTorch calls an embedding
    bag. Threads share the bags, so each thread gets a part of every column. A part of more than `_TERMS` columns is
    summed in several bags, as oneDNN does, because a shorter sum is more exact.
    """

    def __init__(self, weights: Tensor):
        outputs, inputs = weights.shape
        self.threads = torch.get_num_threads()
        self._parts = math.gcd(self.threads, outputs)
        self._sums = -(-inputs // _TERMS)
        self._table = weights.view(self._parts, -1, inputs).transpose(1, 2).contiguous().view(self._parts * inputs, -1)
        self._rows = torch.arange(len(self._table), dtype=torch.int32)
        self._first = self._rows.view(self._parts, inputs)[:, ::_TERMS].flatten()

    def __call__(self, x: Tensor) -> Tensor:
        terms = x.view(-1) if self._parts == 1 else x.repeat(1, self._parts).view(-1)
        sums = torch.embedding_bag(self._table, self._rows, self._first, False, _SUM, False, terms)[0]
        if self._sums > 1:
            sums = sums.view(self._parts, self._sums, -1).sum(1)
        return sums.view(1, -1)


class _Norm:
    """RMSNorm in four operators: √n · x / √(‖x‖² + n·ε) · weight, for rows of n elements. PyTorch's takes nine."""

    def __init__(self, norm: RMSNorm):
        self._parameters = norm._parameters
        size = norm.weight.numel()
        self._root = math.sqrt(size)
        self._zero = torch.zeros(())
        self._floor = torch.tensor(math.sqrt(size * norm.epsilon))

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self._floor)
        return torch.addcdiv(self._zero, x, length, value=self._root).mul_(self._parameters["weight"])
