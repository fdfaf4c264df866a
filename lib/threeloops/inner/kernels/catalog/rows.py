"""Kernels on rows: fused elementwise operations, normalisations and losses. The projection before attention is here
too."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from threeloops.inner.kernels.catalog import rows_functions as of
from threeloops.inner.kernels.catalog.entry import Cost, Entry, by_size, shapes
from threeloops.inner.kernels.catalog.rows_functions import by_keyword, drawn
from threeloops.inner.kernels.catalog.sparse_functions import gradients_of
from threeloops.inner.kernels.matmul import qkv_projection
from threeloops.inner.kernels.rows import (
    bias_gelu_dropout,
    cross_entropy,
    fused_linear_cross_entropy,
    layernorm,
    rmsnorm,
    saxpy,
    softmax,
)

__all__ = ["entries"]

_MATRIX, _VECTOR = ("rows", "columns"), ("columns",)


def _row_entry(
    name: str, launch: Any, reference: Any, inputs: Any, cost: Any, peer: Any, metered: Any = None, long: int = 8192
) -> Entry:
    """Return an operation on (rows, columns), at the shapes that these operations share."""
    matrices = shapes("rows", "columns")
    return Entry(
        name,
        launch,
        reference,
        inputs,
        by_size(cost, "rows", "columns"),
        metered=matrices(*(metered or ((64, 1024), (127, 129), (5, 4096)))),
        compiled=matrices((16384, 1024), (8192, 4096), (8192, 4097), (4096, long)),
        timed=matrices((32768, 1024), (16384, 4096), (16383, 4097), (8192, long)),
        peers={"torch": peer},
    )


def _both_directions(
    module: Any,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inputs: Any,
    peer: Any,
    backward_inputs: Any,
    backward_peer: Any,
    **options: Any,
) -> tuple[Entry, Entry]:
    """Make the entries of two functions of `module`, with their references and costs."""
    functions = backward, module.backward_reference, backward_inputs, module.backward_cost
    return (
        _row_entry(forward.__name__, forward, module.reference, inputs, module.cost, peer, **options),
        _row_entry(backward.__name__, *functions, backward_peer, **options),
    )


def _elementwise_entries() -> tuple[Entry, ...]:
    fused, vectors = bias_gelu_dropout, shapes("elements")
    reference = by_keyword(fused.reference, "seed")
    return (
        Entry(
            "saxpy",
            saxpy.saxpy,
            saxpy.reference,
            drawn(("elements",), ("elements",), then=lambda x, y: (2.5, x, y)),
            by_size(saxpy.cost, "elements"),
            metered=vectors((1 << 16,), (129,), (10_007,)),
            compiled=vectors((1 << 26,), ((1 << 26) + 1,)),
            timed=vectors((1 << 28,), ((1 << 26) + 1,)),
            peers={"torch": lambda a, x, y: torch.add(y, x, alpha=a)},
        ),
        _row_entry(
            "bias_gelu_dropout",
            by_keyword(fused.bias_gelu_dropout, "seed"),
            reference,
            drawn(_MATRIX, _VECTOR, then=of.with_dropout),
            fused.cost,
            of.torch_dropout,
            metered=((64, 1024), (127, 129)),
        ),
        _row_entry(
            "bias_gelu_dropout_backward",
            partial(fused.bias_gelu_dropout_backward, tanh=False),
            gradients_of(reference),
            drawn(_MATRIX, _MATRIX, _VECTOR, then=of.with_dropout),
            fused.backward_cost,
            gradients_of(of.torch_dropout),
            metered=((128, 512), (127, 129)),
        ),
    )


def _normalising_entries() -> tuple[Entry, ...]:
    return (
        *_both_directions(
            softmax,
            softmax.softmax,
            softmax.softmax_backward,
            drawn(_MATRIX),
            lambda x: functional.softmax(x, dim=-1),
            drawn(_MATRIX, _MATRIX, then=lambda dy, x: (dy, x.softmax(-1))),
            lambda dy, y: torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype),
            metered=((64, 1024), (127, 129), (3, 40_000)),
            long=32_000,
        ),
        *_both_directions(
            rmsnorm,
            rmsnorm.rmsnorm,
            rmsnorm.rmsnorm_backward,
            drawn(_MATRIX, _VECTOR),
            of.torch_rmsnorm,
            drawn(
                _MATRIX,
                _MATRIX,
                _VECTOR,
                then=lambda dy, x, w: (dy, x, w, x.float().square().mean(-1).add(1e-6).rsqrt()),
            ),
            lambda dy, x, weight, scale: gradients_of(of.torch_rmsnorm)(dy, x, weight),
        ),
        *_both_directions(
            layernorm,
            layernorm.layernorm,
            layernorm.layernorm_backward,
            drawn(_MATRIX, _VECTOR, _VECTOR),
            of.torch_layernorm,
            drawn(_MATRIX, _MATRIX, _VECTOR, then=of.with_statistics),
            of.torch_layernorm_backward,
        ),
    )


def _loss_entries() -> tuple[Entry, ...]:
    sizes, linear_sizes = shapes("rows", "vocabulary"), ("rows", "width", "vocabulary")
    shared: Mapping[str, Any] = {
        "inputs": drawn(("rows", "vocabulary"), then=of.with_targets),
        "metered": sizes((32, 8192), (17, 129), (3, 20_000)),
        "compiled": sizes((8192, 32_000), (8192, 128_256), (8192, 50_257)),
        "timed": sizes((8192, 32_000), (8192, 128_256), (8191, 50_257)),
    }

    def cost(gradient: bool) -> Cost:
        return lambda shape, dtype: cross_entropy.cost(
            **shape,
            bytes_per_element=dtype.itemsize,
            gradient=gradient,
            ignored=shape["rows"] // of.TARGETS_PER_IGNORED,
        )

    return (
        Entry(
            "cross_entropy",
            cross_entropy.cross_entropy,
            cross_entropy.reference,
            cost=cost(gradient=False),
            peers={"torch": functional.cross_entropy},
            **shared,
        ),
        Entry(
            "cross_entropy_and_gradient",
            of.launch_loss_and_gradient,
            of.loss_and_gradient(cross_entropy.reference),
            cost=cost(gradient=True),
            peers={"torch": of.loss_and_gradient(functional.cross_entropy)},
            **shared,
        ),
        Entry(
            "fused_linear_cross_entropy_and_gradients",
            of.loss_and_gradient(fused_linear_cross_entropy.fused_linear_cross_entropy),
            of.loss_and_gradient(fused_linear_cross_entropy.reference),
            drawn(("rows", "width"), ("vocabulary", "width"), then=of.with_scaled_weight),
            by_size(fused_linear_cross_entropy.cost, *linear_sizes),
            metered=(),
            compiled=(),
            timed=shapes(*linear_sizes)((8192, 4096, 32_000), (8192, 4096, 128_256)),
            peers={
                "torch": of.loss_and_gradient(lambda hidden, weight, t: functional.cross_entropy(hidden @ weight.T, t))
            },
        ),
    )


def _projection_entry() -> Entry:
    sized = shapes("batch", "sequence", "width", "heads", "kv_heads", "head_dim", "bias", "rotary")
    return Entry(
        "qkv_projection",
        by_keyword(qkv_projection.qkv_projection, "heads", "kv_heads", "bias", "rotary"),
        of.qkv_reference,
        of.qkv_inputs,
        lambda shape, dtype: qkv_projection.cost(**shape, bytes_per_element=dtype.itemsize),
        metered=sized((2, 128, 256, 4, 2, 64, 0, 1), (2, 129, 127, 3, 1, 32, 1, 0)),
        compiled=sized((8, 2048, 4096, 32, 8, 128, 0, 1), (8, 1024, 768, 12, 12, 64, 1, 0)),
        timed=sized((8, 2048, 4096, 32, 8, 128, 0, 1), (16, 1023, 768, 12, 12, 64, 1, 0)),
        tensor_cores=True,
        peers={"torch": of.torch_qkv},
    )


def entries() -> tuple[Entry, ...]:
    return (*_elementwise_entries(), *_normalising_entries(), *_loss_entries(), _projection_entry())
