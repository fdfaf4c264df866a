"""The cost of the precision library beside torch's own, and whether the two agree bit for bit.

On a CPU low precision is emulated: these are the costs of the emulation and say nothing about tensor cores. On a GPU
with FP8 tensor cores an FP8 linear layer and a whole step of the course's GPT are timed against bfloat16.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from threeloops.inner.precision.amp import LossScaler, MasterWeights, ScalerState
from threeloops.inner.precision.formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16, FloatFormat
from threeloops.inner.precision.fp8 import Fp8Linear, Recipe, with_fp8_linears
from threeloops.inner.timing import benchmark
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops_grader.machine.provenance import Device, Provenance
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.result import Result, Series

LIBRARY, TORCH, BF16 = "threeloops", "torch", "torch, bfloat16"
FORMATS = (FLOAT16, BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2)
SCALER_STEPS = 500
Call = Callable[[], object]


def measure(provenance: Provenance, *, quick: bool = False) -> Result:
    """Seconds of each part, the library's and its peer's, and the facts that they agree."""
    device, samples = provenance.device, 5 if quick else 15
    torch.set_num_threads(1)  # a thread each: the library's numpy uses no more
    series: list[Series] = []
    for format in FORMATS:
        values = torch.randn(2**18 if quick else 2**20)
        series += _pair(
            f"encode {values.numel():,} float32 as {format.name}",
            (LIBRARY, lambda f=format, v=values: f.encode(v.numpy())),
            (TORCH, lambda f=format, v=values: v.to(getattr(torch, f.name))),
            "cpu",
            samples,
        )
    series += scaler_step(samples) + masters_step(samples)
    facts: dict[str, Any] = {
        "codes_that_differ_from_torch": {f.name: codes_that_differ(f) for f in FORMATS},
        "scaler_steps_equal_to_torch": equal_scaler_steps(SCALER_STEPS),
        "gpt_loss": gpt_losses(30 if quick else 100, device),
        "torch": torch.__version__,
    }
    if device == "cuda" and torch.cuda.get_device_capability() >= (8, 9):
        series += fp8_forward(8192, samples) + gpt_step(samples)
    else:
        facts["not_measured"] = "FP8 linear at 8192³ and the GPT's step: need a GPU with FP8 tensor cores"
    return Result("precision", provenance, {"quick": quick, "samples": samples}, series, facts, notes=notes(facts))


def notes(facts: dict[str, Any]) -> list[str]:
    differing = ", ".join(f"{name} {count}" for name, count in facts["codes_that_differ_from_torch"].items())
    found = [
        f"codes that differ from torch's casts: {differing}",
        f"scale and parameters equal to torch.amp.GradScaler's for {facts['scaler_steps_equal_to_torch']} of "
        f"{SCALER_STEPS} steps",
        f"loss of the tiny GPT in FP8 over that in float32: {facts['gpt_loss']['fp8_over_float32']:.4f}",
    ]
    return found + ([f"not measured: {facts['not_measured']}"] if "not_measured" in facts else [])


def _pair(what: str, ours: tuple[str, Call], peer: tuple[str, Call], device: Device, samples: int) -> list[Series]:
    found = []
    for (by, call), is_peer in ((ours, False), (peer, True)):
        timed = benchmark(lambda call=call: call(), tuple, device=device, samples=samples)
        found.append(Series(what, by, "s", tuple(timed.seconds), "lower", is_peer))
    return found


def codes_that_differ(format: FloatFormat) -> int:
    """Codes whose value, or midpoint to the next value, torch's cast takes elsewhere than `encode`."""
    magnitudes = format.magnitudes()
    values = np.concatenate([magnitudes, (magnitudes[1:] + magnitudes[:-1]) / 2]).astype(np.float32)
    cast = torch.from_numpy(values).to(getattr(torch, format.name)).double().numpy()
    return int((format.rounded(values) != cast).sum())


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*itertools.chain.from_iterable((nn.Linear(256, 256), nn.GELU()) for _ in range(8)))


def _with_gradients(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


def scaler_step(samples: int) -> list[Series]:
    """Unscale, look for infinities, step (SGD), move the scale: eight layers of 256 × 256."""
    ours, theirs = _with_gradients(_network()), _with_gradients(_network())
    our_optimizer, their_optimizer = (torch.optim.SGD(m.parameters(), lr=0.0) for m in (ours, theirs))
    our_scaler = LossScaler(ScalerState(scale=1.0, growth_interval=10**9))
    their_scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=2**30)
    their_scaler.scale(torch.zeros(()))

    def torch_step() -> None:
        their_scaler.step(their_optimizer)
        their_scaler.update()

    return _pair(
        "loss scaler step", (LIBRARY, lambda: our_scaler.step(our_optimizer)), (TORCH, torch_step), "cpu", samples
    )


def masters_step(samples: int) -> list[Series]:
    """AdamW on the same layers in bfloat16 with float32 masters, beside AdamW on float32 weights."""
    low, single = _network().bfloat16(), _with_gradients(_network())
    masters = MasterWeights(low.parameters(), torch.optim.AdamW)
    for master in masters.masters:
        master.grad = torch.ones_like(master)
    plain = torch.optim.AdamW(single.parameters())
    return _pair("AdamW step, float32 masters", (LIBRARY, masters.step), (TORCH, plain.step), "cpu", samples)


def equal_scaler_steps(steps: int) -> int:
    """Steps in a row after which scale and parameters are torch's bit for bit; about every tenth overflows."""
    generator = torch.Generator().manual_seed(0)
    theirs, ours = nn.Parameter(torch.ones(1000)), nn.Parameter(torch.ones(1000))
    optimizers = [torch.optim.AdamW([p]) for p in (theirs, ours)]
    peer = torch.amp.GradScaler("cpu", growth_interval=7)
    peer.scale(torch.zeros(()))
    scaler = LossScaler(ScalerState(growth_interval=7))
    for step in range(steps):
        gradient = torch.randn(1000, generator=generator) * scaler.state.scale
        if torch.rand((), generator=generator) < 0.1:
            gradient[step] = (float("inf"), float("nan"))[step % 2]
        theirs.grad, ours.grad = gradient.clone(), gradient.clone()
        peer.step(optimizers[0])
        peer.update()
        scaler.step(optimizers[1])
        if peer.get_scale() != scaler.state.scale or not torch.equal(theirs, ours):
            return step
    return steps


def _tokens(config: GPTConfig, batch: int, device: Device, seed: int) -> Tensor:
    """A language that can be learned: each token is the last one plus one of three steps."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.tensor([1, 5, 11])[torch.randint(0, 3, (batch, config.max_sequence + 1), generator=generator)]
    return (steps.cumsum(1) % config.vocabulary_size).to(device)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> Tensor:
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


def gpt_losses(steps: int, device: Device) -> dict[str, float]:
    """Mean loss of the last tenth of a short training of the tiny GPT, its blocks' linear layers in float32 and FP8."""
    config = GPTConfig.tiny()
    found = {}
    for name in ("float32", "fp8"):
        torch.manual_seed(0)
        model = GPT(config).to(device)
        if name == "fp8":
            with_fp8_linears(model, Recipe(history_length=16), but=("head",))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = [float(_step(model, optimizer, _tokens(config, 4, device, seed))) for seed in range(steps)]
        found[name] = float(np.mean(losses[-max(steps // 10, 1) :]))
    found["fp8_over_float32"] = found["fp8"] / found["float32"]
    return found


def fp8_forward(size: int, samples: int) -> list[Series]:
    """x · weightᵀ with `size`³, in FP8, casts and amax included, beside bfloat16."""
    plain = nn.Linear(size, size, bias=False, device="cuda", dtype=torch.bfloat16)
    layer, x = Fp8Linear.of(plain), torch.randn(size, size, device="cuda", dtype=torch.bfloat16)

    def ours() -> None:
        with torch.no_grad():
            layer(x)

    def peer() -> None:
        with torch.no_grad():
            plain(x)

    return _pair(f"linear forward, {size}³", (LIBRARY, ours), (BF16, peer), "cuda", samples)


def gpt_step(samples: int) -> list[Series]:
    """A whole training step of the small GPT, blocks in FP8, beside bfloat16."""
    config = GPTConfig.small()
    plain = GPT(config).to("cuda", torch.bfloat16)
    low = with_fp8_linears(copy.deepcopy(plain), Recipe(history_length=16), but=("head",))
    tokens = _tokens(config, 8, "cuda", 0)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-4) for model in (low, plain)]
    return _pair(
        "GPT training step",
        (LIBRARY, lambda: _step(low, optimizers[0], tokens)),
        (BF16, lambda: _step(plain, optimizers[1], tokens)),
        "cuda",
        samples,
    )
