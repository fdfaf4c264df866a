"""The planner's transformer, beside one that torch builds."""

import math

import pytest
import torch
from threeloops.training.planning import LLAMA_8B, LLAMA_70B, LLAMA_405B, PUBLISHED, Transformer
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

SMALL = {
    "gated, grouped": Transformer(3, 64, 8, 2, 96, 50),
    "plain, tied": Transformer(2, 24, 4, 4, 96, 17, gated=False, tied=True),
}


class Layer(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        for name, size in model.matrices.items():
            ins = model.hidden if name == "down" else model.width
            self.add_module(name, nn.Linear(ins, size // ins, bias=False))
        self.norms = nn.ModuleList(nn.RMSNorm(model.width) for _ in range(2))

    def forward(self, x):
        split = lambda y, heads: y.unflatten(-1, (heads, -1)).transpose(-2, -3)  # noqa: E731
        y = self.norms[0](x)
        q, k, v = (
            split(y, heads)
            for y, heads in (
                (self.query(y), self.model.heads),
                (self.key(y), self.model.kv_heads),
                (self.value(y), self.model.kv_heads),
            )
        )
        k, v = (each.repeat_interleave(self.model.heads // self.model.kv_heads, -3) for each in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        x = x + self.output((scores.softmax(-1) @ v).transpose(-2, -3).flatten(-2))
        y = self.norms[1](x)
        y = nn.functional.silu(self.gate(y)) * self.up(y) if self.model.gated else nn.functional.gelu(self.up(y))
        return x + self.down(y)


@pytest.mark.parametrize("model", SMALL.values(), ids=SMALL)
def test_parameters_and_flops_are_those_of_a_module(model):
    layer = Layer(model)
    assert model.layer_parameters == sum(p.numel() for p in layer.parameters())
    ends = (1 if model.tied else 2) * model.vocabulary * model.width + model.width
    assert model.parameters == model.layers * model.layer_parameters + ends
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(2, 10, model.width))
    attention = 2 * 2 * 2 * 10 * 10 * model.width  # not causal; ours counts half
    assert model.layer_flops(20, 10) == counter.get_total_flops() - attention / 2
    assert model.head_flops(20) == 2 * 20 * model.width * model.vocabulary
    assert model.step_flops(2, 10) == 3 * (model.layers * model.layer_flops(20, 10) + model.head_flops(20))


def test_published_models_have_their_published_sizes():
    for model, billions in ((LLAMA_8B, 8.03), (LLAMA_70B, 70.55), (LLAMA_405B, 405.85)):
        assert round(model.parameters / 1e9, 2) == billions
    for run in PUBLISHED:
        if run.source == "megatron":
            billions = float(run.name.removesuffix("B"))
            assert abs(run.model.parameters / 1e9 - billions) < 0.12


def test_sizes_of_models_with_experts_and_free_heads():
    """Mixtral 8x7B: 46.7 billion parameters, of which a token uses 12.9 (Jiang et al. 2024). Qwen3-32B has 64 heads of
    128 beside a width of 5,120, and 32.8 billion parameters (Qwen3 technical report, table 1; its model card)."""
    mixtral = Transformer(32, 4096, 32, 8, 14336, 32000, experts=8, experts_per_token=2)
    assert round(mixtral.parameters / 1e9, 1) == 46.7 and round(mixtral.active_parameters / 1e9, 1) == 12.9
    qwen = Transformer(64, 5120, 64, 8, 25600, 151936, head_dim=128)
    assert round(qwen.parameters / 1e9, 1) == 32.8
    assert LLAMA_8B.active_parameters == LLAMA_8B.parameters


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"experts": 8}, "experts_per_token = 0: expected 1 to experts = 8"),
        ({"experts_per_token": 2}, "there are no experts"),
        ({"experts": 2, "experts_per_token": 3}, "expected 1 to experts = 2"),
        ({"adapter_rank": -1}, "adapter_rank = -1"),
        ({"adapter_rank": 8, "frozen_bits": 0.0}, "frozen_bits = 0.0"),
        ({"heads": 7, "kv_heads": 7}, "give head_dim"),
    ],
)
def test_impossible_sizes_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Transformer(**{"layers": 1, "width": 64, "heads": 8, "kv_heads": 8, "hidden": 1, "vocabulary": 1} | wrong)


def test_what_backward_needs_per_token():
    """Megatron's 34 bytes per token and width are 32 and two dropout masks; a gated MLP of a hand-counted layer."""
    plain = Transformer(1, 64, 8, 8, 256, 1, gated=False)
    assert 2 * plain.saved("none") == 32 * 64
    llama = LLAMA_8B
    assert llama.saved("none") == 4 * 4096 + 2 * 4096 + 2 * 1024 + 3 * 14336
    assert llama.saved("selective") == 4096 + 4096 + 1024 + 14336 + 4096 + 4096
    assert llama.saved("full") == 4096
    assert plain.saved("selective") == 64 + 64 + 64 + 64 + 256  # its input, attention, and query, value and up


def test_what_backward_computes_again():
    assert LLAMA_8B.recomputed_flops(7, 100, "none") == 0
    assert LLAMA_8B.recomputed_flops(7, 100, "full") == LLAMA_8B.layer_flops(7, 100)
    weights = 4096 * (1024 + 4096 + 14336)  # key, output and up
    assert LLAMA_8B.recomputed_flops(7, 100, "selective") == 2 * 7 * weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "layers = 0: expected 1 or more"),
        ({"heads": 7}, "width = 64, heads = 7"),
        ({"kv_heads": 3}, "kv_heads = 3"),
    ],
)
def test_a_model_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        Transformer(**{"layers": 2, "width": 64, "heads": 8, "kv_heads": 2, "hidden": 96, "vocabulary": 50} | options)
