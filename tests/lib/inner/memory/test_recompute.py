"""Recomputation: the same gradients, the formula's peak, the best segment, and what a selection keeps."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner.memory import LiveStorage
from threeloops.inner.memory.recompute import MATRIX_PRODUCTS, Segments, best_segment, divisors, segment_peak
from threeloops.models.gpt import GPT, GPTConfig
from torch import nn

ROWS, WIDTH = 64, 32


class Layer(nn.Module):
    """Keeps its input, a product eight times as wide, and what SiLU makes of it: c = 17·b, as in a GPT's layer."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 8 * WIDTH, bias=False), nn.Linear(8 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(x)))


INPUT_BYTES = ROWS * WIDTH * 4
LAYER_BYTES = INPUT_BYTES * (1 + 8 + 8)


def stack(layers):
    torch.manual_seed(0)
    return nn.ModuleList(Layer() for _ in range(layers))


def gradients(layers, x):
    y = x.requires_grad_()
    x.grad = None
    for layer in layers:
        y = layer(y)
    y.sum().backward()
    return [x.grad, *(p.grad for p in layers.parameters())]


@pytest.mark.parametrize("layers", [4, 6, 12, 16, 24, 36, 48])
def test_the_peak_of_activations_is_the_formulas_for_every_divisor(layers):
    blocks, x, peaks = stack(layers), torch.randn(ROWS, WIDTH), {}
    for k in divisors(layers):
        segmented = Segments(blocks, k)
        for parameter in blocks.parameters():
            parameter.grad = None
        with LiveStorage(segmented) as live:
            gradients(segmented, x)
        peaks[k] = live.timeline.peak_of("activation")
        assert peaks[k] == pytest.approx(segment_peak(layers, k, INPUT_BYTES, LAYER_BYTES), rel=0.05)
    best = best_segment(layers, INPUT_BYTES, LAYER_BYTES)
    assert peaks[best] == min(peaks.values())


@pytest.mark.parametrize("keep", [frozenset(), MATRIX_PRODUCTS], ids=["all", "selective"])
@pytest.mark.parametrize("k", [1, 2, 6])
def test_gradients_are_the_same_to_the_last_bit(k, keep):
    blocks, x = stack(6), torch.randn(ROWS, WIDTH)
    plain = [g.clone() for g in gradients(blocks, x)]
    for parameter in blocks.parameters():
        parameter.grad = None
    for ours, theirs in zip(gradients(Segments(blocks, k, keep), x), plain, strict=True):
        assert torch.equal(ours, theirs)


def test_the_course_gpt_trains_in_segments_under_its_own_names():
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(layers=6))
    tokens = torch.randint(256, (2, 33))
    names = set(model.state_dict())

    def loss():
        model.zero_grad()
        value = model(tokens, tokens)
        value.backward()
        return value.detach(), [p.grad.clone() for p in model.parameters()]

    plain, wanted = loss()
    model.blocks = Segments(model.blocks, 3)
    again, found = loss()
    assert set(model.state_dict()) == names
    assert torch.equal(plain, again)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    model.blocks = Segments(model.blocks, 2)  # segments of segments are segments of layers
    assert len(list(model.blocks)) == 3
    with torch.no_grad():
        assert torch.equal(model(tokens, tokens), plain)


class Cache:
    """The keys and values of one layer, one behind the other."""

    def __init__(self):
        self.held = []

    def attend(self, q, k, v, attention):
        held = self.held or (k[:, :, :0], v[:, :, :0])
        self.held = [torch.cat(parts, dim=2) for parts in zip(held, (k, v), strict=True)]
        return attention(q, *self.held)


def test_decoding_in_segments_gives_every_layer_its_own_cache():
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(layers=4))
    tokens = torch.randint(256, (2, 8))
    model.blocks = Segments(model.blocks, 2)
    caches = [Cache() for _ in range(4)]
    with torch.no_grad():
        full = model(tokens)
        decoded = [model(tokens[:, :5], caches=caches), model(tokens[:, 5:], start=5, caches=caches)]
    assert torch.allclose(torch.cat(decoded, 1), full, atol=1e-5)
    assert all(cache.held[0].shape[2] == 8 for cache in caches)


def test_caches_where_segments_would_share_them_are_refused():
    model = GPT(GPTConfig.tiny(layers=4))
    model.blocks = Segments(model.blocks, 2)
    caches = [Cache() for _ in range(4)]
    with pytest.raises(ValueError, match=r"caches for 4 layers in 2 segments: .* torch\.no_grad"):
        model(torch.randint(256, (2, 8)), caches=caches)
    assert not any(cache.held for cache in caches)


def test_a_slice_of_segments_holds_the_layers_themselves():
    blocks = stack(6)
    part = Segments(blocks, 3)[1:5]
    assert type(part) is nn.ModuleList
    assert [*part] == [*blocks][1:5]


def test_selective_recomputation_keeps_more_than_full_and_less_than_none():
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(layers=8))
    tokens = torch.randint(256, (4, 64))
    blocks, peaks = model.blocks, []
    for made in (blocks, Segments(blocks, 1, MATRIX_PRODUCTS), Segments(blocks, 1)):
        model.blocks = made
        model.zero_grad()
        with LiveStorage(model) as live:
            model(tokens, tokens).backward()
        peaks.append(live.timeline.peak_of("activation"))
    everything, selective, inputs = peaks
    assert inputs < 0.6 * selective and selective < 0.75 * everything


@given(st.integers(1, 300), st.floats(1, 1e6), st.floats(1, 60))
def test_the_best_segment_is_no_worse_than_any_and_near_the_square_root(layers, b, ratio):
    best = best_segment(layers, b, ratio * b)
    peaks = {k: segment_peak(layers, k, b, ratio * b) for k in divisors(layers)}
    assert peaks[best] == min(peaks.values())
    continuous = 2 * math.sqrt(layers * ratio) * b
    assert peaks[best] >= continuous * (1 - 1e-9)


@pytest.mark.parametrize(
    ("layers", "k", "names"), [(0, 1, "layers = 0"), (12, 5, "layers_per_segment = 5"), (12, 0, "= 0")]
)
def test_layers_and_segments_that_do_not_fit_are_named(layers, k, names):
    with pytest.raises(ValueError, match=names):
        segment_peak(layers, k, 1, 1)
    if layers:
        with pytest.raises(ValueError, match="layers = 12: 1, 2, 3, 4, 6, 12"):
            Segments(stack(layers), k)
