"""The memory budget and its named peers: counts, the tracker and PyTorch's own `MemTracker`; segments and
`torch.utils.checkpoint` on every block; offloaded AdamW and `torch.optim.AdamW` with its state beside the weights.

Bytes are exact and need no repetition; times are taken in turns. On a CPU one thread computes: the copies have the
others, and threads that wait for each other on a busy machine would be all that is measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from threeloops.inner.memory import LiveStorage, account
from threeloops.inner.memory.recompute import MATRIX_PRODUCTS, Segments, best_segment, divisors, segment_peak
from threeloops.models.gpt import GPT, Block, RotaryPositions
from threeloops.models.gpt_config import GPTConfig
from threeloops_grader.machine.provenance import Provenance
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.memory_offload import offloading
from benchmarks.result import Prediction, Result, Series
from benchmarks.turns import in_turns

TORCH_CHECKPOINT = "torch.utils.checkpoint, every block"
CLAIMED_RECOMPUTE = (1.20, 1.33)
SIX = {
    "batch": (GPTConfig.tiny(), 5, 64, "adamw", None),
    "length": (GPTConfig.tiny(), 2, 128, "adamw", None),
    "layers": (GPTConfig.tiny(layers=6), 2, 64, "momentum", None),
    "kv_heads": (GPTConfig.tiny(layers=3, kv_heads=1, tied_embeddings=False), 3, 65, "sgd", None),
    "optimiser": (GPTConfig.tiny(layers=4), 1, 2, "adamw", None),
    "recompute": (GPTConfig.tiny(layers=6), 4, 64, "adamw", 2),
}


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """Peaks of six configurations and of every segment, and the times of recomputing and offloaded steps."""
    device, threads = about.device, torch.get_num_threads()
    torch.manual_seed(0)
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        return _measure(about, device, quick)
    finally:
        torch.set_num_threads(threads)


def _measure(about: Provenance, device: str, quick: bool) -> Result:
    recompute = recomputing(device, rounds=3 if quick else 15)
    offload = offloading(device, elements=parameters(device, quick), rounds=3 if quick else 21)
    depths = [segments(layers) for layers in ((4, 12) if quick else (4, 6, 8, 12, 16, 24, 36, 48))]
    times = times_without_recomputing(recompute)
    facts = {
        "best_layers_per_segment": [best for _, best in depths],
        "times_longer_for_recomputing": times,
        "offload": offload.facts,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    notes = [
        "recomputing takes times as long as nothing recomputed: "
        + "; ".join(f"{name} {ratio:.2f}" for name, ratio in times.items())
        + f"; claimed {CLAIMED_RECOMPUTE[0]:.2f} to {CLAIMED_RECOMPUTE[1]:.2f}",
        f"best layers a segment as by the formula: {sum(best['by_formula'] == best['found'] for _, best in depths)} of "
        f"{len(depths)} depths",
    ]
    predictions = [
        *(row for name in SIX for row in peaks(name, device)),
        *(row for rows, _ in depths for row in rows),
        *offload.predictions,
    ]
    return Result("memory", about, {"quick": quick}, recompute + offload.series, facts, predictions, notes)


def parameters(device: str, quick: bool) -> int:
    """How many the offloaded optimiser has. On a GPU a link is fast: a chunk must take longer to copy than a copy to
    begin, or latency is measured, so there the short form has fewer rounds and no fewer parameters."""
    return 1 << 18 if quick and device == "cpu" else 1 << 25


def peaks(name: str, device: str) -> list[Prediction]:
    """Counted peak of one configuration beside what was tracked, and what PyTorch says of the same step."""
    config, batch, length, optimizer, k = SIX[name]
    counted = account(config, batch, length, optimizer=optimizer, layers_per_segment=k, device=device).peak_bytes
    model, made, step = a_step(config, batch, length, optimizer, k, device)
    with LiveStorage(model, optimizers=[made]) as live:
        step()
    measured = {
        "LiveStorage": live.timeline.peak_bytes,
        "torch.cuda.max_memory_allocated": live.allocator_peak_bytes,
        "PyTorch's MemTracker": torch_tracked(model, made, step, device),
    }
    return [
        Prediction("peak of live storage", name, by, "bytes", counted, found)
        for by, found in measured.items()
        if found is not None
    ]


def a_step(config: GPTConfig, batch: int, length: int, optimizer: str, k: int | None, device: str) -> tuple:
    model = GPT(config).to(device)
    if k:
        model.blocks = Segments(model.blocks, k)
    kinds = {
        "adamw": (torch.optim.AdamW, {}),
        "sgd": (torch.optim.SGD, {}),
        "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    }
    kind, options = kinds[optimizer]
    made = kind(model.parameters(), lr=1e-3, foreach=False, **options)
    tokens = torch.randint(config.vocabulary_size, (batch, length), device=device)
    targets = tokens.roll(-1, 1)

    def step() -> None:
        made.zero_grad(set_to_none=True)
        model(tokens, targets).backward()
        made.step()

    step()
    made.zero_grad(set_to_none=True)
    return model, made, step


def torch_tracked(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], None], device: str
) -> int | None:
    """The peak by `torch.distributed._tools.mem_tracker`, a private part of PyTorch: None where it does not run."""
    try:
        from torch.distributed._tools.mem_tracker import MemTracker

        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Module is None")  # said of segments, whose lambdas are no modules
            step()
        (snapshot,) = (s for d, s in tracker.get_tracker_snapshot("peak").items() if d.type == device)
        return int(snapshot["Total"])
    except Exception:  # a private module may raise anything, and it is only a peer
        return None


def segments(layers: int) -> tuple[list[Prediction], dict[str, int]]:
    """Tracked activations of every divisor k of one depth beside (L/k)·b + k·c, and the best k of both."""
    config = GPTConfig.tiny(width=32, mlp_width=96)
    rotation, rows = RotaryPositions(config.head_dim, 32, 1e4)(0, 32), []
    kept = account(config, 2, 32).layer
    b, c = kept["input"], sum(kept.values())
    blocks = nn.ModuleList(Block(config) for _ in range(layers))
    found = {}
    for k in divisors(layers):
        blocks.zero_grad(set_to_none=True)
        x = torch.randn(2, 32, config.width, requires_grad=True)
        with LiveStorage(blocks) as live:
            for segment in Segments(blocks, k):
                x = segment(x, rotation)
            x.sum().backward()
        found[k] = live.timeline.peak_of("activation")
        del x
        case, peak = f"{layers} layers, {k} a segment", segment_peak(layers, k, b, c)
        rows.append(Prediction("activations, (L/k)·b + k·c", case, "LiveStorage", "bytes", peak, found[k]))
    best = min(found, key=lambda k: found[k])
    return rows, {"layers": layers, "found": best, "by_formula": best_segment(layers, b, c)}


def recomputing(device: str, rounds: int) -> list[Series]:
    """Seconds of forward and backward pass: nothing recomputed, every layer (ours, PyTorch's), matrix products kept."""
    config = GPTConfig.tiny(layers=4, width=256, mlp_width=768)
    model = GPT(config).to(device)
    tokens = torch.randint(256, (4 if device == "cpu" else 64, 128), device=device)
    blocks = model.blocks
    variants: dict[str, Any] = {
        "nothing recomputed": blocks,
        TORCH_CHECKPOINT: EachCheckpointed(blocks),
        "Segments, k = 1": Segments(blocks, 1),
        "Segments, k = 1, matrix products kept": Segments(blocks, 1, MATRIX_PRODUCTS),
    }

    def run(made: Any) -> None:
        model.blocks = made
        model.zero_grad(set_to_none=True)
        model(tokens, tokens).backward()

    samples = in_turns({name: lambda made=made: run(made) for name, made in variants.items()}, device, rounds)
    return [Series("forward and backward pass", n, "s", s, "lower", n == TORCH_CHECKPOINT) for n, s in samples.items()]


def times_without_recomputing(series: list[Series]) -> dict[str, float]:
    """How many times as long each way takes as the first, which recomputes nothing."""
    plain, *others = series
    return {each.by: each.median / plain.median for each in others}


class EachCheckpointed(nn.ModuleList):
    """The peer: every block by itself through `torch.utils.checkpoint`."""

    def __iter__(self) -> Iterator[Any]:
        for block in super().__iter__():
            yield lambda x, *context, block=block: checkpoint(block, x, *context, use_reentrant=False)
