"""Kernels on rows: those that fuse, those that normalise, scores into losses; and the projection before attention."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from threeloops.inner.costs import Work
from threeloops.inner.kernels.catalog import rows_functions as of
from threeloops.inner.kernels.catalog.entry import Entry, Shape
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

Cost = Callable[[Shape, torch.dtype], Work]


def shapes(*names: str) -> Callable[..., tuple[dict[str, int], ...]]:
    """shapes("rows", "columns")((4096, 1024), …) → ({"rows": 4096, "columns": 1024}, …)."""
    return lambda *sizes: tuple(dict(zip(names, each, strict=True)) for each in sizes)


def by_size(cost: Callable[..., Work], *names: str) -> Cost:
    """`cost` of the shape's sizes in this order and of the dtype's bytes."""
    return lambda shape, dtype: cost(*(shape[name] for name in names), dtype.itemsize)


def row_entry(
    name: str, launch: Any, reference: Any, inputs: Any, cost: Any, peer: Any, metered: Any = None, long: int = 8192
) -> Entry:
    """An operation on (rows, columns), at the shapes that they share."""
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


def elementwise_entries() -> tuple[Entry, ...]:
    fused, vectors = bias_gelu_dropout, shapes("elements")
    return (
        Entry(
            "saxpy",
            saxpy.saxpy,
            saxpy.reference,
            of.saxpy_inputs,
            by_size(saxpy.cost, "elements"),
            metered=vectors((1 << 16,), (129,), (10_007,)),
            compiled=vectors((1 << 26,), ((1 << 26) + 1,)),
            timed=vectors((1 << 28,), ((1 << 26) + 1,)),
            peers={"torch": lambda a, x, y: torch.add(y, x, alpha=a)},
        ),
        row_entry(
            "bias_gelu_dropout",
            of.launch_dropout,
            of.dropout_reference,
            of.dropout_inputs,
            fused.cost,
            of.torch_dropout,
            metered=((64, 1024), (127, 129)),
        ),
        row_entry(
            "bias_gelu_dropout_backward",
            of.launch_dropout_backward,
            of.with_gradients(of.dropout_reference, 2),
            of.dropout_backward_inputs,
            fused.backward_cost,
            of.with_gradients(of.torch_dropout, 2),
            metered=((128, 512), (127, 129)),
        ),
    )


def normalising_entries() -> tuple[Entry, ...]:
    return (
        row_entry(
            "softmax",
            softmax.softmax,
            softmax.reference,
            of.matrix,
            softmax.cost,
            lambda x: functional.softmax(x, dim=-1),
            metered=((64, 1024), (127, 129), (3, 40_000)),
            long=32_000,
        ),
        row_entry(
            "softmax_backward",
            softmax.softmax_backward,
            softmax.backward_reference,
            of.softmax_backward_inputs,
            softmax.backward_cost,
            lambda dy, y: torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype),
            metered=((64, 1024), (127, 129), (3, 40_000)),
            long=32_000,
        ),
        row_entry(
            "rmsnorm", rmsnorm.rmsnorm, rmsnorm.reference, of.matrix_and_vectors(1), rmsnorm.cost, of.torch_rmsnorm
        ),
        row_entry(
            "rmsnorm_backward",
            rmsnorm.rmsnorm_backward,
            rmsnorm.backward_reference,
            of.rmsnorm_backward_inputs,
            rmsnorm.backward_cost,
            of.with_gradients(of.torch_rmsnorm, 2),
        ),
        row_entry(
            "layernorm",
            layernorm.layernorm,
            layernorm.reference,
            of.matrix_and_vectors(2),
            layernorm.cost,
            of.torch_layernorm,
        ),
        row_entry(
            "layernorm_backward",
            layernorm.layernorm_backward,
            layernorm.backward_reference,
            of.layernorm_backward_inputs,
            layernorm.backward_cost,
            of.torch_layernorm_backward,
        ),
    )


def loss_entries() -> tuple[Entry, ...]:
    sizes = shapes("rows", "vocabulary")
    shared: Mapping[str, Any] = {
        "inputs": of.cross_entropy_inputs,
        "metered": sizes((32, 8192), (17, 129), (3, 20_000)),
        "compiled": sizes((8192, 32_000), (8192, 128_256), (8192, 50_257)),
        "timed": sizes((8192, 32_000), (8192, 128_256), (8191, 50_257)),
    }

    def cost(gradient: bool) -> Cost:
        return lambda shape, dtype: cross_entropy.cost(
            shape["rows"],
            shape["vocabulary"],
            dtype.itemsize,
            gradient=gradient,
            ignored=of.ignored(shape["rows"]),
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
            of.launch_fused_linear,
            of.linear_gradients(fused_linear_cross_entropy.reference),
            of.fused_linear_inputs,
            by_size(fused_linear_cross_entropy.cost, "rows", "width", "vocabulary"),
            metered=(),
            compiled=(),
            timed=shapes("rows", "width", "vocabulary")((8192, 4096, 32_000), (8192, 4096, 128_256)),
            peers={"torch": of.linear_gradients(of.torch_fused_linear)},
        ),
    )


def projection_entry() -> Entry:
    def sized(*sizes: tuple[int, ...]) -> tuple[dict[str, int], ...]:
        return shapes(*of.QKV_SIZES, "bias", "rotary")(*sizes)

    def cost(shape: Shape, dtype: torch.dtype) -> Work:
        sizes = {name: shape[name] for name in (*of.QKV_SIZES, "bias", "rotary")}
        return qkv_projection.cost(**sizes, bytes_per_element=dtype.itemsize)

    return Entry(
        "qkv_projection",
        of.launch_qkv,
        of.qkv_reference,
        of.qkv_inputs,
        cost,
        metered=sized((2, 128, 256, 4, 2, 64, 0, 1), (2, 129, 127, 3, 1, 32, 1, 0)),
        compiled=sized((8, 2048, 4096, 32, 8, 128, 0, 1), (8, 1024, 768, 12, 12, 64, 1, 0)),
        timed=sized((8, 2048, 4096, 32, 8, 128, 0, 1), (16, 1023, 768, 12, 12, 64, 1, 0)),
        tensor_cores=True,
        peers={"torch": of.torch_qkv},
    )


def entries() -> tuple[Entry, ...]:
    return (*elementwise_entries(), *normalising_entries(), *loss_entries(), projection_entry())
