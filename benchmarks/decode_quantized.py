"""Costs and savings of weights of few bits: bytes, perplexity, and tokens per second of this machine, beside bfloat16.

Perplexity is per token of a text that neither training nor calibration saw, in windows of the model's longest sequence
that follow one another by half. Tokens per second are those of the course's own engine, greedy, parties in turns.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from threeloops.models.gpt import GPT
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.batching.engine import Engine
from threeloops.product.decode.runner import ModelRunner
from threeloops.product.quantized import Method, QuantizedLinear, Scheme, perplexity, quantize, weight_bytes
from threeloops.product.request import Request, Sampling

from benchmarks.result import Series
from benchmarks.turns import in_turns

__all__ = ["Row", "quantized_rows", "series"]

PEER = "bf16"
_BLOCK = 16


@dataclass(frozen=True)
class Row:
    """One way of keeping the weights. `layer_bits` are bits per weight of the layers that are quantised."""

    name: str
    bytes: int
    layer_bits: float
    nats: float
    seconds: tuple[float, ...]  # per decoded token, of each round
    made_in: float  # seconds

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats)


def quantized_rows(
    model: GPT,
    text: torch.Tensor,
    calibration: torch.Tensor,
    *,
    group: int = 64,
    decoded: int = 64,
    batch: int = 1,
    rounds: int = 5,
) -> list[Row]:
    """`text` is (tokens,), `calibration` (sequences, tokens); `decoded` tokens of each of `batch` requests are timed.

    The model is float32, and so are its quantisers; what they make computes in bfloat16, as the peer does. Layers of
    few bits share scales in groups of `group`, or have one per row; embedding and head are left alone.
    """
    made: dict[str, tuple[GPT, float, float]] = {
        "fp32": (model, 32.0, 0.0),
        PEER: (copy.deepcopy(model).bfloat16(), 16.0, 0.0),
    }
    whole_row = Scheme(8, 1 << 20)
    ways: list[tuple[str, Method, Scheme, bool]] = [
        ("int8 RTN", "rtn", Scheme(8, group), False),
        ("int8 RTN, scale per row", "rtn", whole_row, False),
    ]
    for kind, symmetric in (("", True), (" asymmetric", False)):
        scheme = Scheme(4, group, symmetric)
        ways += [
            (f"int4{kind} RTN", "rtn", scheme, False),
            (f"int4{kind} AWQ", "awq", scheme, False),
            (f"int4{kind} GPTQ", "gptq", scheme, False),
            (f"int4{kind} GPTQ, act order", "gptq", scheme, True),
        ]
    for name, method, scheme, act_order in ways:
        started = time.perf_counter()
        tokens = None if method == "rtn" else calibration
        small = quantize(model, method, scheme, calibration=tokens, act_order=act_order)
        taken = time.perf_counter() - started
        made[name] = (small.bfloat16(), _bits(small), taken)
    stride = model.config.max_sequence // 2
    times = in_turns(
        {name: _decoding(each, text, decoded, batch) for name, (each, _, _) in made.items()}, str(text.device), rounds
    )
    return [
        Row(
            name,
            weight_bytes(each),
            bits,
            perplexity(each, text, stride=stride).nats,
            tuple(seconds / (decoded * batch) for seconds in times[name]),
            taken,
        )
        for name, (each, bits, taken) in made.items()
    ]


def _bits(model: GPT) -> float:
    """Return bits per weight of the quantised layers, including scales and zero points."""
    layers = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    return 8 * sum(each.nbytes for each in layers) / sum(each.in_features * each.out_features for each in layers)


def _decoding(model: GPT, text: torch.Tensor, decoded: int, batch: int):
    """Prompts of one block, so that nearly all of the time is decoding."""
    blocks = batch * (-(-decoded // _BLOCK) + 1)

    def run() -> None:
        engine = Engine(ModelRunner(model, blocks, _BLOCK), BlockManager(blocks, _BLOCK))
        prompts = text[: batch * _BLOCK].view(batch, _BLOCK).tolist()
        sampling = Sampling(max_tokens=decoded)
        engine.run(Request(str(number), tuple(prompt), sampling) for number, prompt in enumerate(prompts))

    return run


def series(rows: Sequence[Row]) -> list[Series]:
    """Return series for a benchmark's `Result`: bytes, nats per token and tokens per second, each beside bfloat16."""
    found = []
    for row in rows:
        peer = row.name == PEER
        found += [
            Series("bytes of a model's weights", row.name, "bytes", (row.bytes,), peer=peer),
            Series("perplexity per token", row.name, "", (row.perplexity,), peer=peer),
            Series(
                "decoded tokens per second", row.name, "tokens/s", tuple(1 / s for s in row.seconds), "higher", peer
            ),
        ]
    return sorted(found, key=lambda each: each.what)
