"""GELU and its derivative as functions that kernels call: z·Φ(z), exact or by the tanh approximation.

Sources: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016); Abramowitz and Stegun, "Handbook of Mathematical
Functions" (1964), formula 7.1.26.
The formula gives the tail of the normal distribution as a polynomial times exp(−z²/2), off by at most 0.75e-7: what is
lost anyway when erf is added to 1 in float32. It takes fewer instructions than `tl.erf`, and the derivative needs its
exponential, so a fused kernel stays nearer to the memory's speed.
"""

import triton
import triton.language as tl


@triton.jit
def gelu(z, TANH: tl.constexpr):
    """z·Φ(z). The approximation ½(1 + tanh u) is written as the sigmoid of 2u, which is the same number."""
    if TANH:
        return z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))
    else:
        return z * normal_distribution(z, tl.exp(-0.5 * z * z))


@triton.jit
def gelu_derivative(z, TANH: tl.constexpr):
    """Φ(z) + z·φ(z), or the derivative of the approximation.

    The sigmoid of 2u times its distance from 1 is e / (1 + e)² with e = exp(−|2u|): no difference that loses digits.
    """
    if TANH:
        twice_u = 1.5957691216057308 * (z + 0.044715 * z * z * z)
        e = tl.exp(-tl.abs(twice_u))
        larger = 1 / (1 + e)
        slope = 1.5957691216057308 * (1 + 0.134145 * z * z)
        return tl.where(twice_u > 0, larger, e * larger) + z * slope * e * larger * larger
    else:
        bell = tl.exp(-0.5 * z * z)
        return normal_distribution(z, bell) + 0.3989422804014327 * z * bell


@triton.jit
def normal_distribution(z, bell):
    """Φ(z), where `bell` is exp(−z²/2). The polynomial is 7.1.26's for erfc(|z|/√2), halved."""
    t = 1 / (1 + 0.23164189 * tl.abs(z))
    polynomial = 0.5307027145 * t - 0.7265760135
    polynomial = polynomial * t + 0.7107068705
    polynomial = polynomial * t - 0.142248368
    polynomial = polynomial * t + 0.127414796
    tail = polynomial * t * bell
    return tl.where(z > 0, 1 - tail, tail)
