"""Decoding step by step: what each cache, a draft and weights of few bits gain, on a model that the course trained.

It is the model of `make model` with its draft, or, where there is none yet and for `quick`, the small one that comes
with the library, with its own first layer as a draft.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from threeloops.models.gpt import GPT
from threeloops.product.request import Sampling
from threeloops.product.trained import standard_library, trained
from threeloops_grader.machine.provenance import Provenance

from benchmarks.decode_quantized import quantized_rows
from benchmarks.decode_quantized import series as quantized_series
from benchmarks.decode_steps import speculation, step_times
from benchmarks.result import Result

__all__ = ["measure"]

_CALIBRATION = 64  # sequences


def measure(about: Provenance, *, quick: bool = False) -> Result:
    device = about.device
    name, model, drafts = _models(quick)
    model.to(device)
    for draft in drafts.values():
        if draft is not None:
            draft.to(device)
    learnt, held_out = (part.long() for part in standard_library())
    rounds = 2 if quick else 7
    longest = model.config.max_sequence
    lengths = torch.randint(50, longest, (32,), generator=torch.Generator().manual_seed(0)).tolist()
    sequences = [held_out[1000 * place :][:length].tolist() for place, length in enumerate(lengths)]
    series = [
        row
        for count in ((4,) if quick else (1, 8, 32))
        for row in step_times(model, sequences[:count], device, rounds=rounds)
    ]
    found, predictions, drafted = speculation(
        model,
        drafts,
        [tokens[:50] for tokens in sequences[:4]],
        Sampling(max_tokens=16 if quick else 64, temperature=0.5),
        device,
        guesses=3,
        rounds=rounds,
    )
    count = _CALIBRATION // 4 if quick else _CALIBRATION
    starts = torch.randint(len(learnt) - longest, (count,), generator=torch.Generator().manual_seed(1)).tolist()
    calibration = torch.stack([learnt[start : start + longest] for start in starts])
    rows = quantized_rows(
        model,
        held_out[: 1 << (11 if quick else 16)].to(device),
        calibration.to(device),
        decoded=16 if quick else 64,
        rounds=rounds,
    )
    return Result(
        "decode",
        about,
        {"quick": quick, "model": name, "parameters": model.config.parameters_count(), "rounds": rounds},
        [*series, *found, *quantized_series(rows)],
        {
            "drafts": drafted,
            "few bits": {row.name: {"bits per weight": row.layer_bits, "seconds to make": row.made_in} for row in rows},
        },
        predictions,
        [
            "speculation: the formula takes it that the model checks guesses in no time, as where reading the weights "
            "is the limit; on a CPU arithmetic is, and what is checked costs what it costs",
            "few bits: perplexity per byte of held-out text, whose windows follow one another by half",
        ],
    )


def _models(quick: bool) -> tuple[str, GPT, dict[str, GPT | None]]:
    """The name of the model, itself, and its drafts; None is looking up."""
    if not quick:
        try:
            return "model", trained("model"), {"draft": trained("draft"), "look-up": None}
        except FileNotFoundError:
            pass
    model = trained("tiny")
    return "tiny", model, {"its own first layer": _first_layer(model), "look-up": None}


def _first_layer(model: GPT) -> GPT:
    draft = GPT(replace(model.config, layers=1))
    own = draft.state_dict()
    draft.load_state_dict({name: value for name, value in model.state_dict().items() if name in own})
    return draft.eval().requires_grad_(False)
