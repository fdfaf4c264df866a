"""Number formats: what a bit pattern means, which pattern a number becomes, and how it is rounded on the way.

FLOAT8_E4M3FN.encode([0.3, 500.0])          # codes 42 and 126
BFLOAT16.rounded(1 + 2**-9)                 # 1.0
INT8.rounded(x, INT8.scale_for(abs(x).max()))
"""

from threeloops.inner.precision.floating import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    FLOAT_FORMATS,
    TF32,
    FloatFormat,
)
from threeloops.inner.precision.integer import INT4, INT8, INTEGER_FORMATS, IntegerFormat
from threeloops.inner.precision.rounding import Rounding

__all__ = [
    "BFLOAT16", "FLOAT16", "FLOAT32", "FLOAT8_E4M3FN", "FLOAT8_E5M2", "FLOAT_FORMATS", "FloatFormat",
    "INT4", "INT8", "INTEGER_FORMATS", "IntegerFormat", "Rounding", "TF32",
]  # fmt: skip
