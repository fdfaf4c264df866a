"""Weights of few bits: int8 and int4 in groups, rounded to the nearest, by GPTQ or by AWQ, and files that hold them.

>>> small = quantize(model, "gptq", Scheme(bits=4, group=64), calibration=tokens)    # a copy; its layers are
>>> small.blocks[0].mlp.down                                                         # QuantizedLinear
QuantizedLinear(512, 192, int4, group=64, symmetric)
>>> weight_bytes(small) / weight_bytes(model)
>>> perplexity(small, text, stride=64).value

`quantized.gguf` writes a GPT as llama.cpp's files, and reads it back.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.quantized.awq import fold_scales, search_scales
    from threeloops.product.quantized.calibration import Calibration, InputStatistics
    from threeloops.product.quantized.gptq import gptq, output_error
    from threeloops.product.quantized.group import QuantizedWeight, Scheme, pack, quantize_weight, unpack
    from threeloops.product.quantized.linear import QuantizedLinear
    from threeloops.product.quantized.model import AlreadyQuantizedError, Method, quantize, weight_bytes
    from threeloops.product.quantized.perplexity import Perplexity, perplexity
else:
    import_on_demand(__name__)

__all__ = [
    "AlreadyQuantizedError", "Calibration", "InputStatistics", "Method", "Perplexity", "QuantizedLinear",
    "QuantizedWeight", "Scheme", "fold_scales", "gptq", "output_error", "pack", "perplexity", "quantize",
    "quantize_weight", "search_scales", "unpack", "weight_bytes",
]  # fmt: skip
