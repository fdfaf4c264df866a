"""GPTQ (Frantar et al. 2022): round the weights of one input after another, and let the remaining weights compensate.

For inputs x of the layer, Σ ‖(W − Ŵ) x‖² = tr((W − Ŵ) H (W − Ŵ)ᵀ) with H = Σ x xᵀ. Once column i is rounded, the least
error is reached if the later columns j move by −(wᵢ − ŵᵢ) · Uᵢⱼ / Uᵢᵢ, where U is the upper Cholesky factor of H⁻¹
(section 3.3, step 3): row i of U holds what Gaussian elimination of the columns before i leaves of H⁻¹.
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

import math

import torch
from jaxtyping import Float
from torch import Tensor

from threeloops.product.quantized.group import QuantizedWeight, Scheme, from_codes, grid_of, pack, to_codes

__all__ = ["gptq", "output_error"]

_BLOCK = 128
"""Columns that are rounded before all later ones are corrected, as one matrix product."""


def gptq(
    weight: Float[Tensor, "rows columns"],
    gram: Float[Tensor, "columns columns"],
    scheme: Scheme,
    *,
    damping: float = 0.01,
    act_order: bool = False,
) -> QuantizedWeight:
    """Return a weight of few bits that gives nearly the same outputs on inputs whose Σ x xᵀ is `gram`. Computed in
    float64.

    `damping`, a share of the diagonal's mean, is added to the diagonal. A group's scale is chosen when its first column
    is reached, from its corrected weights. With `act_order`, columns come in the order of falling inputs. Scales are
    then those of the original weights, since a group does not stay in one piece.

    Raises ValueError if sizes disagree, or if `gram` is not positive definite in spite of the damping.
    """
    columns = weight.shape[1]
    if gram.shape != (columns, columns):
        raise ValueError(f"gram has shape {tuple(gram.shape)}: expected {(columns, columns)}, Σ x xᵀ of the inputs")
    if not 0 <= damping < math.inf:
        raise ValueError(f"damping = {damping}: expected a share of the diagonal's mean, at least 0")
    original = weight.detach().double()
    gram = gram.double().clone()
    gram.diagonal()[gram.diagonal() == 0] = 1  # an input that is always 0: its weights neither matter nor move others
    order = torch.arange(columns, device=gram.device)
    if act_order:
        order = gram.diagonal().argsort(descending=True, stable=True)
    w = original[:, order]
    upper = _factor(gram[order][:, order], damping)
    grids = [grid_of(group, scheme) for group in original.split(scheme.group, dim=1)]
    codes = torch.zeros_like(w, dtype=torch.uint8)
    width = min(_BLOCK, scheme.group)  # so that a group begins where a block does, and nothing is owed to it
    for first in range(0, columns, width):
        last = min(first + width, columns)
        if not act_order and first % scheme.group == 0:
            grids[first // scheme.group] = grid_of(w[:, first : first + scheme.group], scheme)
        errors = torch.zeros_like(w[:, first:last])
        for column in range(first, last):
            scale, zero = grids[int(order[column]) // scheme.group]
            codes[:, column] = to_codes(w[:, column], scale, zero, scheme)
            error = w[:, column] - from_codes(codes[:, column], scale, zero, torch.float64)
            errors[:, column - first] = error / upper[column, column]
            w[:, column + 1 : last] -= errors[:, column - first, None] * upper[column, column + 1 : last]
        w[:, last:] -= errors @ upper[first:last, last:]
    in_place = torch.empty_like(codes)
    in_place[:, order] = codes
    scales, zeros = (torch.stack(per_group, dim=1) for per_group in zip(*grids, strict=True))
    return QuantizedWeight(scheme, columns, pack(in_place, scheme.bits), scales, None if scheme.symmetric else zeros)


def _factor(gram: Tensor, damping: float) -> Tensor:
    """The upper Cholesky factor of the damped matrix's inverse."""
    damped = gram + damping * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    try:
        return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True)
    except torch.linalg.LinAlgError as error:
        raise ValueError(
            f"gram with damping = {damping} is not positive definite: expected more tokens than the layer has inputs, "
            f"{len(gram)}, all finite; calibrate with more, or raise damping"
        ) from error


def output_error(
    weight: Float[Tensor, "rows columns"],
    quantized: Float[Tensor, "rows columns"],
    gram: Float[Tensor, "columns columns"],
) -> float:
    """Return Σ ‖(W − Ŵ) x‖² / Σ ‖W x‖² over the inputs whose Σ x xᵀ is `gram`, or 0 if all outputs are 0."""
    exact = weight.detach().double()
    gram = gram.double()
    lost, whole = (float(((matrix @ gram) * matrix).sum()) for matrix in (exact - quantized.double(), exact))
    return lost / whole if whole else 0.0
