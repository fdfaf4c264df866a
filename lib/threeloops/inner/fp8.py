"""FP8 training: per-tensor scales with a delayed amax history, and a linear layer that uses them.

layer = Fp8Linear(512, 2048, recipe=Recipe(history_length=16))
layer(x).sum().backward()                   # emulated on a CPU, on FP8 tensor cores where there are any
"""

from threeloops.inner.precision.delayed_scaling import Recipe, ScaleState, after_tensor
from threeloops.inner.precision.fp8_cast import Quantised, Scaler, quantise
from threeloops.inner.precision.fp8_linear import Fp8Linear, multiplies_fp8, product, with_fp8_linears

__all__ = [
    "Fp8Linear", "Quantised", "Recipe", "ScaleState", "Scaler", "after_tensor", "multiplies_fp8", "product",
    "quantise", "with_fp8_linears",
]  # fmt: skip
