"""Matrix products: one program a tile, persistent programs, tiles described to the tensor memory accelerator."""

from typing import Any

import torch

from threeloops.inner.costs import Work
from threeloops.inner.kernels.catalog import Entry, Shape
from threeloops.inner.kernels.catalog.rows_functions import normal
from threeloops.inner.kernels.descriptor_matmul import descriptor_matmul
from threeloops.inner.kernels.matmul import cost, matmul, reference
from threeloops.inner.kernels.persistent_matmul import persistent_matmul

HALF = (torch.float16, torch.bfloat16)


def sizes(*each: tuple[int, int, int]) -> tuple[dict[str, int], ...]:
    """(m, k, n) as shapes."""
    return tuple(dict(zip(("m", "k", "n"), size, strict=True)) for size in each)


def factors(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    return normal(dtype, device, seed, (shape["m"], shape["k"]), (shape["k"], shape["n"]))


def product_cost(shape: Shape, dtype: torch.dtype) -> Work:
    return cost(shape["m"], shape["k"], shape["n"], dtype.itemsize)


def entries() -> tuple[Entry, ...]:
    aligned = sizes((8192, 8192, 8192), (4096, 4096, 4096), (8192, 4096, 1024))
    ragged = sizes((4097, 4095, 4001), (8191, 1023, 2049))
    kinds = (("matmul", matmul, ragged), ("persistent_matmul", persistent_matmul, ragged))
    described = ("descriptor_matmul", descriptor_matmul, ())
    return tuple(
        Entry(
            name,
            launch,
            reference,
            factors,
            product_cost,
            metered=sizes((256, 256, 256), (128, 512, 384)),
            compiled=(*aligned, *odd),
            timed=(*aligned, *odd),
            dtypes=HALF,
            tensor_cores=True,
            peers={"torch": torch.matmul},
        )
        for name, launch, odd in (*kinds, described)
    )
