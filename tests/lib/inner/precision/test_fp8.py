"""FP8: scales that follow the history as Transformer Engine's do, and a linear layer exact about its FP8 numbers."""

import copy
import math
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner.memory import LiveStorage
from threeloops.inner.memory.recompute import Segments
from threeloops.inner.precision.formats import FLOAT8_E4M3FN, FLOAT8_E5M2
from threeloops.inner.precision.fp8 import (
    Fp8Linear,
    Quantised,
    Recipe,
    Scaler,
    ScaleState,
    _compiled,
    _pass,
    after_tensor,
    product,
    quantise,
    with_fp8_linears,
)

AMAXES = st.lists(st.one_of(st.just(0.0), st.floats(2**-20, 2**20, width=32)), min_size=1, max_size=30)


def transformer_engine(amaxes, largest, margin, length, most_recent):
    """delayed_scaling.cu, transcribed: the newest amax stands first, the window is rolled, and zeros fill it."""
    history, scale, found = np.zeros(length, np.float32), np.float32(1), []
    for amax in amaxes:
        history[0] = max(history[0], np.float32(amax))
        reference = history[0] if most_recent else history.max()
        history = np.roll(history, -1)
        history[0] = 0
        if np.isfinite(reference) and reference > 0:
            scale = np.float32(largest * 2.0**-margin) / reference
        found.append(float(scale))
    return found


@given(AMAXES, st.integers(-1, 3), st.integers(1, 6), st.booleans(), st.sampled_from([FLOAT8_E4M3FN, FLOAT8_E5M2]))
def test_scales_are_transformer_engine_s(amaxes, margin, length, most_recent, format):
    recipe = Recipe(margin, length, "most_recent" if most_recent else "max")
    state, found = ScaleState(), []
    for amax in amaxes:
        state = after_tensor(state, amax, format, recipe)
        found.append(state.scale)
    assert found == transformer_engine(amaxes, format.largest, margin, length, most_recent)


ANY_AMAX = st.lists(
    st.one_of(st.sampled_from([0.0, math.inf, math.nan, 1e-40]), st.floats(0, 2.0**100, width=32)), max_size=12
)


@given(ANY_AMAX, st.integers(-1, 3), st.integers(1, 4), st.sampled_from(["max", "most_recent"]))
def test_a_scaler_does_the_same_arithmetic_in_tensors(amaxes, margin, length, amax):
    recipe, state = Recipe(margin, length, amax), ScaleState()
    scaler = Scaler(FLOAT8_E5M2, recipe)
    for number in amaxes:
        scaler(torch.tensor([-number, 0.0]))
        state = after_tensor(state, number, FLOAT8_E5M2, recipe)
        assert scaler.state == state


def test_a_scaler_s_state_is_part_of_the_model_and_stays_float32():
    torch.manual_seed(0)
    recipe = Recipe(history_length=3)
    layer = Fp8Linear(8, 8, recipe=recipe).bfloat16()
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    for _ in range(5):
        layer(x).sum().backward()
    assert layer.weight.dtype == torch.bfloat16
    assert layer.input_scaler.scale.dtype == layer.input_scaler.history.dtype == torch.float32
    assert layer.input_scaler.state.scale == float(np.float32(448) / np.float32(x.float().abs().max()))
    again = Fp8Linear(8, 8, recipe=recipe).bfloat16()
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(3 * x), layer(3 * x))
    assert again.input_scaler.state == layer.input_scaler.state and len(again.input_scaler.state.history) == 3
    assert copy.deepcopy(layer).gradient_scaler.state == layer.gradient_scaler.state


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile on a CPU needs g++")
def test_the_compiled_pass_is_the_eager_one():
    """On a GPU it is compiled; a CPU's compiler reads the same source."""
    torch._dynamo.reset()
    x = torch.randn(77) * 100  # of one length, because each is compiled anew
    with_nan = x.index_fill(0, torch.tensor([5]), math.nan)
    state = (torch.tensor(3.0), torch.tensor([2.0, 500.0, 0.0]), torch.tensor(2))
    for most_recent, values in ((False, x), (True, x), (False, with_nan)):
        arguments = (values, (*state, torch.tensor(7.0), 448.0, most_recent), 448.0, torch.float8_e4m3fn)
        (a, a_state, a_amax), (b, b_state, b_amax) = (run(*arguments) for run in (_compiled(_pass), _pass))
        for got, wanted in zip((a, *a_state, a_amax), (b, *b_state, b_amax), strict=True):
            assert got.dtype == wanted.dtype
            torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=0, equal_nan=True)


def test_autocast_does_not_reach_the_emulated_product():
    torch.manual_seed(0)
    layer, x = Fp8Linear(32, 16), torch.randn(8, 32)
    plain = copy.deepcopy(layer)(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), plain)


def test_an_amax_leaves_the_window():
    state = ScaleState()
    for amax in (100.0, 1.0, 1.0):
        state = after_tensor(state, amax, FLOAT8_E4M3FN, Recipe(history_length=3))
        assert state.scale == float(np.float32(448) / np.float32(100))
    assert after_tensor(state, 1.0, FLOAT8_E4M3FN, Recipe(history_length=3)) == ScaleState(448.0, (1.0, 1.0, 1.0))


def test_zeros_and_infinities_change_nothing_and_a_tiny_amax_keeps_the_scale_finite():
    state = ScaleState(7.0, (2.0,))
    assert after_tensor(state, math.inf, FLOAT8_E5M2, Recipe()) is state
    assert after_tensor(state, math.nan, FLOAT8_E5M2, Recipe()) is state
    assert after_tensor(ScaleState(7.0), 0.0, FLOAT8_E5M2, Recipe()) == ScaleState(7.0, (0.0,))
    assert math.isfinite(after_tensor(ScaleState(), 1e-40, FLOAT8_E5M2, Recipe()).scale)


def test_what_is_refused():
    for call, words in (
        (lambda: Recipe(history_length=0), "history_length = 0"),
        (lambda: Recipe(amax="mean"), "amax = 'mean'"),
        (lambda: Recipe(margin=200), "margin = 200"),
        (lambda: after_tensor(ScaleState(), -1.0, FLOAT8_E5M2, Recipe()), "amax = -1.0"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize("format", [FLOAT8_E4M3FN, FLOAT8_E5M2], ids=lambda f: f.name)
def test_quantised_values_are_the_format_s(format):
    x = torch.cat([torch.randn(4000) * 10.0 ** torch.randint(-6, 6, (4000,)), torch.tensor([0.0, math.inf, math.nan])])
    codes = quantise(x, 3.0, format).values.view(torch.uint8).numpy()
    wanted = format.encode(np.clip((x * 3.0).numpy(), -format.largest, format.largest))
    np.testing.assert_array_equal(format.decode(codes), format.decode(wanted))


def test_a_tensor_is_scaled_by_those_before_it():
    scaler = Scaler(FLOAT8_E4M3FN, Recipe(history_length=2))
    first = scaler(torch.tensor([1.0, -2.0]))
    assert (first.scale, scaler.state.scale) == (1.0, 224.0)
    outlier = scaler(torch.tensor([1.0, 8.0]))
    assert outlier.dequantised().tolist() == [1.0, 2.0]  # 8 · 224 saturates at 448
    assert scaler.state.scale == 56.0
    assert scaler(torch.zeros(0)).values.numel() == 0


def test_the_three_products_are_those_of_the_quantised_matrices():
    torch.manual_seed(0)
    layer = Fp8Linear(32, 48, recipe=Recipe(history_length=4))
    for step in range(4):
        x = (torch.randn(2, 16, 32) * 4.0**step).requires_grad_()
        gradient = torch.randn(2, 16, 48) * 1e-3
        scalers = (layer.input_scaler, layer.weight_scaler, layer.gradient_scaler)
        scales = [s.state.scale for s in scalers]
        y = layer(x)
        y.backward(gradient)
        qx, qw, qg = (
            f.rounded(np.clip(t.detach().reshape(-1, t.shape[-1]).numpy() * np.float32(s), -f.largest, f.largest)) / s
            for t, s, f in zip((x, layer.weight, gradient), scales, [s.format for s in scalers], strict=True)
        )
        bias = layer.bias.detach().double().numpy()
        np.testing.assert_allclose(y.detach().reshape(-1, 48).numpy(), qx @ qw.T + bias, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(x.grad.reshape(-1, 32).numpy(), qg @ qw, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(layer.weight.grad.numpy(), qg.T @ qx, rtol=1e-4, atol=1e-5 * 4.0**step)
        layer.weight.grad = None
    assert layer.gradient_scaler.state.scale > 1e6


@pytest.mark.parametrize("formats", [(FLOAT8_E4M3FN, FLOAT8_E4M3FN), (FLOAT8_E5M2, FLOAT8_E4M3FN)])
def test_the_hardware_s_product_is_the_emulated_one(formats):
    """`torch._scaled_mm` has a CPU form; on FP8 tensor cores the same call is made."""
    a, b = (quantise(torch.randn(*shape), 30.0, f) for shape, f in zip([(32, 64), (48, 64)], formats, strict=True))
    emulated = product(a, b, torch.float32, hardware=False)
    torch.testing.assert_close(product(a, b, torch.float32, hardware=True), emulated, rtol=1e-5, atol=1e-4)
    turned = Quantised(b.values.t(), b.scale)  # (k, n): its rows do not lie along memory
    c = quantise(torch.randn(32, 48), 30.0, formats[0])
    close = {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(
        product(c, turned, torch.float32, hardware=True), product(c, turned, torch.float32, hardware=False), **close
    )
    with pytest.raises(ValueError, match="k = 15"):
        product(quantise(torch.ones(16, 15), 1.0, FLOAT8_E4M3FN), quantise(torch.ones(16, 15), 1.0, FLOAT8_E4M3FN),
                torch.float32, hardware=True)  # fmt: skip


def layers(count=4, width=64):
    torch.manual_seed(0)
    return torch.nn.ModuleList(
        torch.nn.Sequential(Fp8Linear(width, width, recipe=Recipe(history_length=8)), torch.nn.SiLU())
        for _ in range(count)
    )


def through(model, x):
    for layer in model:
        x = layer(x)
    return x


def test_recomputed_activations_are_those_of_the_first_time():
    """The same scales, the same gradients, and each tensor remembered once."""
    kept, recomputed = layers(), layers()
    segments = Segments(recomputed, 2)
    for step in range(4):
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(step)) * 3.0**step
        through(kept, x).square().mean().backward()
        through(segments, x).square().mean().backward()
        for ours, theirs in zip(recomputed.parameters(), kept.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad)
            ours.grad = theirs.grad = None
    assert len(recomputed[0][0].input_scaler.state.history) == 4


def test_what_is_kept_for_the_backward_pass_is_autograd_s_to_free():
    """So recomputation drops it, and a second backward pass is refused as everywhere."""
    model, x = layers(), torch.randn(512, 64)
    held = {}
    for name, made in (("kept", model), ("recomputed", Segments(model, 1))):
        with LiveStorage(model) as live:
            loss = through(made, x).sum()
            held[name] = live.timeline.live_bytes
            loss.backward()
    assert held["recomputed"] < held["kept"] - 3 * x.numel()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_an_evaluation_leaves_the_scales_alone():
    layer = Fp8Linear(4, 4)
    layer(torch.ones(2, 4)).sum().backward()
    before = layer.input_scaler.state
    layer.eval()
    with torch.no_grad():
        assert layer(torch.full((2, 4), 1e6)).isfinite().all()
    assert layer.input_scaler.state == before
    layer.train()
    layer(torch.ones(2, 4))
    assert len(layer.input_scaler.state.history) == len(before.history) + 1


def test_a_layer_under_two_names_stays_one_layer():
    shared = torch.nn.Linear(4, 4)
    model = with_fp8_linears(torch.nn.Sequential(shared, torch.nn.Sequential(torch.nn.ReLU(), shared)))
    assert type(model[0]) is Fp8Linear and model[1][1] is model[0]
    alone = with_fp8_linears(shared)
    assert type(alone) is Fp8Linear and alone.weight is shared.weight


def test_scales_stay_where_they_have_a_reciprocal():
    scaler = Scaler(FLOAT8_E4M3FN, Recipe(margin=40))
    huge = torch.tensor([1e30, -1e30])
    scaler(huge)
    assert scaler(huge).dequantised().isfinite().all()
    assert after_tensor(ScaleState(), 1e39, FLOAT8_E4M3FN, Recipe()) == ScaleState()


def test_a_small_network_learns_in_fp8_about_as_well():
    def final_loss(make):
        torch.manual_seed(0)
        model = torch.nn.Sequential(make(16, 64), torch.nn.ReLU(), make(64, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        x = torch.randn(256, 16)
        y = torch.sin(x.sum(1, keepdim=True))
        for _ in range(200):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        return loss.item()

    single, low = (
        final_loss(torch.nn.Linear),
        final_loss(lambda i, o: Fp8Linear(i, o, recipe=Recipe(history_length=16))),
    )
    assert low < 3 * single + 0.02


def test_a_model_is_converted_in_place_and_keeps_its_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False)))
    model.head = torch.nn.Linear(8, 2)
    before = dict(model.named_parameters())
    assert with_fp8_linears(model, Recipe(margin=1), but=("head",)) is model
    assert [type(m) for m in (model[0], model[1][0], model.head)] == [Fp8Linear, Fp8Linear, torch.nn.Linear]
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    assert model[1][0].input_scaler.recipe.margin == 1
    assert model(torch.randn(3, 4)).shape == (3, 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="FP8 tensor cores need a GPU")
def test_a_layer_on_fp8_tensor_cores_agrees_with_its_emulation():
    torch.manual_seed(0)
    on_cpu = Fp8Linear(64, 32, bias=False)
    on_gpu = Fp8Linear(64, 32, bias=False).cuda()
    on_gpu.weight.data.copy_(on_cpu.weight)
    for _ in range(3):
        x, gradient = torch.randn(48, 64), torch.randn(48, 32)
        a, b = x.clone().requires_grad_(), x.cuda().requires_grad_()
        y, z = on_cpu(a), on_gpu(b)
        y.backward(gradient)
        z.backward(gradient.cuda())
        torch.testing.assert_close(z.cpu(), y, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-2, atol=1e-2)
