"""Which dtype autocast gives each operator, and 16-bit storage emulated without 16-bit hardware.

Matrix products take most of the time, and the hardware sums their terms in float32, so they may run in 16 bits.
Exponentials, logarithms and long sums lose too much. Where two tensors meet element by element, the wider dtype wins.
The lists are those that PyTorch keeps for GPUs in ATen/autocast_mode.h.

A tensor core multiplies 16-bit numbers exactly and sums in float32, so a float32 product with rounded inputs and a
rounded result emulates it, up to the order of the sum.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["AutocastPolicy", "GPU_POLICY", "Treatment", "stored_as"]


class Treatment(Enum):
    LOW = "inputs are cast to the low dtype"
    FLOAT32 = "inputs are cast to float32"
    PROMOTE = "inputs are cast to the widest dtype among them"
    AS_IS = "runs in the dtype that it is given"
    REFUSED = "raises: it is not safe in 16 bits, and there is another form of it"


@dataclass(frozen=True)
class AutocastPolicy:
    """Operators by the name of their ATen function (`softmax`, `nll_loss`). All others run as they are."""

    low: frozenset[str]
    float32: frozenset[str]
    promote: frozenset[str]
    refused: frozenset[str]

    def treatment(self, operator: str) -> Treatment:
        listed = (treatment for treatment in Treatment if operator in getattr(self, treatment.name.lower(), ()))
        return next(listed, Treatment.AS_IS)


GPU_POLICY = AutocastPolicy(
    low=frozenset(
        "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution "
        "prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul "
        "linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
        "_scaled_dot_product_flash_attention scaled_dot_product_attention".split()
    ),
    float32=frozenset(
        "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm "
        "native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm norm cosine_similarity poisson_nll_loss "
        "cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss "
        "mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss "
        "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp prod softmax log_softmax cumprod cumsum "
        "linalg_vector_norm linalg_matrix_norm sum upsample_nearest1d upsample_nearest2d upsample_nearest3d "
        "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d "
        "upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d "
        "_upsample_bicubic2d_aa".split()
    ),
    promote=frozenset(
        "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add cat stack".split()
    ),
    refused=frozenset({"binary_cross_entropy"}),
)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return x.to(dtype).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype).to(gradient.dtype), None


def stored_as(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `x` in its own dtype after being stored in `dtype`: rounded, or infinite on overflow. The gradient that
    flows back through this point is stored in `dtype` too, and may underflow or overflow there."""
    return x if dtype == x.dtype else _Rounded.apply(x, dtype)
