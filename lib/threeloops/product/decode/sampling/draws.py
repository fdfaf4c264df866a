"""Draw the next token from logits, with a temperature, min-p, top-k and top-p.

A token is drawn as argmax(log p + Gumbel noise), which is a draw from p (Gumbel 1954; Maddison et al. 2014). The noise
is a hash of the request's seed, the token's position and the token itself: a counter-based generator (Salmon et al.
2011, "Parallel Random Numbers: As Easy as 1, 2, 3") with the mixing function of SplitMix64 (Steele et al. 2014). So,
given the same logits, the draw does not depend on the other requests in the batch. The generator has no state, so a
preempted request continues with the same noise.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from threeloops.product.request import Sampling

__all__ = ["choose", "draw", "probabilities", "uniforms"]


def choose(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int], *, stream: int = 0) -> Tensor:
    """Choose the next token of each row of `logits`, (rows, vocabulary), and return the tokens as (rows,).

    `positions` are the positions of the new tokens. For `stream`, see `draw`. A row with numbers that are not finite
    gets a meaningless token, so the caller has to check for such rows.
    """
    random = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0]
    if not random:
        return logits.argmax(-1)
    chosen = logits.argmax(-1) if len(random) < len(samplings) else logits.new_empty(len(logits), dtype=torch.long)
    rows = torch.tensor(random, device=logits.device)
    noisy = [samplings[row] for row in random]
    chances = probabilities(logits[rows], noisy)
    chosen[rows] = draw(
        chances, [sampling.seed for sampling in noisy], [positions[row] for row in random], stream=stream
    )
    return chosen


def probabilities(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Return the probabilities from which the token of each row is drawn, (rows, vocabulary) in float32 or wider.

    The temperature is applied first, then min-p, then top-k, and then top-p to the remaining tokens. This is vLLM's
    order; transformers applies min-p last. Top-k keeps every token whose logit equals the smallest one kept. At
    temperature 0 the likeliest token has probability 1; among equals it is the first.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    alike = defaultdict(list)
    for row, sampling in enumerate(samplings):
        alike[sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p].append(row)
    if len(alike) == 1:
        return _filtered(logits, *next(iter(alike)))
    chances = torch.empty_like(logits)
    for settings, members in alike.items():
        rows = torch.tensor(members, device=logits.device)
        chances[rows] = _filtered(logits[rows], *settings)
    return chances


def draw(chances: Tensor, seeds: Sequence[int], positions: Sequence[int], *, stream: int = 0) -> Tensor:
    """Draw one token from each row of `chances`, (rows, vocabulary), and return the tokens as (rows,).

    A row need not add up to 1. Draws that differ in seed, position or `stream` are independent. Draws that agree in all
    three use the same noise.
    """
    noise = -(-_uniforms(seeds, positions, chances.shape[-1], stream, chances.device).log()).log()
    return (chances.double().log() + noise).argmax(-1)


def uniforms(seeds: Sequence[int], positions: Sequence[int], *, stream: int, device: torch.device) -> Tensor:
    """Return a random number between 0 and 1 for each seed and position, (rows,) in float64.

    Numbers that differ in seed, position or `stream` are independent, as in `draw`.
    """
    return _uniforms(seeds, positions, 1, stream, device)[:, 0]


def _filtered(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    if temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    # Subtracting the largest logit and keeping the temperature above 0 avoids ∞ − ∞ and 0 / 0.
    logits = (logits - logits.amax(-1, keepdim=True)) / max(temperature, torch.finfo(logits.dtype).tiny)
    if min_p > 0:  # a logit is now the log of the ratio to the largest probability
        logits = logits.masked_fill(logits < math.log(min_p), -torch.inf)
    if 0 < top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    chances = logits.softmax(-1)
    if top_p < 1:
        ordered, places = chances.sort(descending=True, stable=True)
        beyond = ordered.cumsum(-1) - ordered >= top_p  # the token that crosses top_p is still kept
        beyond[:, 0] = False  # even if float32 rounds top_p to 0
        chances = chances.masked_fill(torch.zeros_like(beyond).scatter_(-1, places, beyond), 0.0)
        chances = chances / chances.sum(-1, keepdim=True)
    return chances


def _uniforms(
    seeds: Sequence[int], positions: Sequence[int], columns: int, stream: int, device: torch.device
) -> Tensor:
    """Return random numbers strictly between 0 and 1, (rows, columns) in float64, each made of 52 random bits."""
    keys = [
        _mix_one(_mix_one(_mix_one(seed) ^ position) ^ stream) for seed, position in zip(seeds, positions, strict=True)
    ]
    signed = [key - 2**64 if key >= 2**63 else key for key in keys]
    key = torch.tensor(signed, dtype=torch.int64, device=device)
    bits = _mix(key[:, None] + _GOLDEN_SIGNED * torch.arange(1, columns + 1, device=device))
    return (_shifted(bits, 12).double() + 0.5) * 2.0**-52  # half a step from both ends: neither 0 nor 1


_GOLDEN = 0x9E3779B97F4A7C15
_GOLDEN_SIGNED = _GOLDEN - 2**64
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_ALL = 2**64 - 1


def _mix_one(number: int) -> int:
    """Apply one step of SplitMix64 to an integer, of which only the last 64 bits count."""
    number = (number + _GOLDEN) & _ALL
    number = ((number ^ number >> 30) * _FIRST) & _ALL
    number = ((number ^ number >> 27) * _SECOND) & _ALL
    return number ^ number >> 31


def _mix(numbers: Tensor) -> Tensor:
    """Apply the step of `_mix_one`, without its first addition, to int64 numbers.

    Products of int64 wrap around in the same way as unsigned products.
    """
    numbers = (numbers ^ _shifted(numbers, 30)) * (_FIRST - 2**64)
    numbers = (numbers ^ _shifted(numbers, 27)) * (_SECOND - 2**64)
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """Shift int64 numbers to the right as if they were unsigned. PyTorch's own shift repeats the sign bit."""
    return (numbers >> bits) & (2 ** (64 - bits) - 1)
