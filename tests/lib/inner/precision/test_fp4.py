"""4-bit numbers, their block scales, and a linear layer that multiplies them, against float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from threeloops.inner.precision.formats import FLOAT8_E4M3FN
from threeloops.inner.precision.fp4 import E2M1, MXFP4, NVFP4, Fp4Linear, Fp4Recipe, _to_e2m1, quantise_fp4, rotated
from threeloops.lab.drawings.inner.formats import stored
from torch import nn

PLAIN = replace(NVFP4, square_weights=False, stochastic_gradients=False, hadamard=False)


def numbers(*shape, seed=0, spread=2.0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random) * torch.exp(spread * torch.randn(*shape, generator=random))


def coin(seed=0):
    return torch.Generator().manual_seed(seed)


# Numbers


def nearest(value):
    """The number of E2M1 that is nearest to `value`; of two the one with the even code. Written without its steps."""
    size = min(abs(value), E2M1[-1])
    code = min(range(8), key=lambda code: (abs(E2M1[code] - size), code % 2))
    return float(np.copysign(E2M1[code], value))


def test_every_quarter_goes_to_the_nearest_number_and_ties_to_the_even_code():
    values = torch.arange(-28, 29) / 4.0
    assert _to_e2m1(values).tolist() == [nearest(value) for value in values.tolist()]
    values = numbers(2000)
    assert _to_e2m1(values).tolist() == [nearest(value) for value in values.tolist()]


def test_the_sign_of_zero_stays():
    assert torch.signbit(_to_e2m1(torch.tensor([-0.0, -0.1, 0.1]))).tolist() == [True, True, False]


def test_stochastic_rounding_takes_the_neighbours_and_has_the_right_mean():
    for value in (0.1, 0.75, 1.3, 2.2, -3.9, 5.5, 4.0, -6.0):
        drawn = _to_e2m1(torch.full((40_000,), value), coin())
        below = max(number for number in E2M1 if number <= abs(value))
        above = min(number for number in E2M1 if number >= abs(value))
        assert set(drawn.abs().tolist()) <= {below, above}
        assert drawn.double().mean().item() == pytest.approx(value, abs=4 * (above - below) / 2 / 200 + 1e-12)


# Blocks


def by_hand(x, recipe, height=1):
    """Block by block in float64."""
    out, whole = np.zeros_like(x), 1.0
    if recipe.scales == "e4m3":
        whole = np.float32(np.abs(x).max()) / np.float32(6 * 448)
    for top in range(0, x.shape[0], height):
        for left in range(0, x.shape[1], recipe.block):
            block = x[top : top + height, left : left + recipe.block]
            amax = np.abs(block).max()
            if amax == 0:
                continue
            if recipe.scales == "e8m0":
                unit = 2.0 ** (np.floor(np.log2(amax)) - 2)
            else:
                unit = float(FLOAT8_E4M3FN.rounded(np.float32(np.float32(amax / 6) / whole))) * float(whole)
            if unit:
                out[top : top + height, left : left + recipe.block] = np.vectorize(nearest)(block / unit) * unit
    return out


@pytest.mark.parametrize("recipe", [PLAIN, MXFP4, replace(PLAIN, block=4)], ids=["nvfp4", "mxfp4", "block of 4"])
@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("shape", [(32, 64), (5, 16), (3, 7), (17, 40), (1, 1)])
def test_blocks_are_those_of_a_slow_program(recipe, square, shape):
    x = numbers(*shape, seed=sum(shape))
    made = quantise_fp4(x, recipe, square=square)
    right = by_hand(x.double().numpy(), recipe, recipe.block if square else 1)
    same = np.isclose(made.double().numpy(), right, rtol=1e-6, atol=0)
    assert made.shape == x.shape
    assert same.mean() > 0.99, "a division in float32 may tip a tie"


def test_nvfp4_is_what_the_lab_stores():
    x = numbers(8, 64)
    torch.testing.assert_close(quantise_fp4(x, PLAIN), stored(x, "nvfp4"), rtol=1e-6, atol=0)


@pytest.mark.parametrize("recipe", [NVFP4, MXFP4])
def test_zeros_and_nothing_are_kept(recipe):
    assert torch.equal(quantise_fp4(torch.zeros(3, 20), recipe), torch.zeros(3, 20))
    assert quantise_fp4(torch.zeros(0, 20), recipe).shape == (0, 20)
    assert quantise_fp4(torch.zeros(4, 0), recipe).shape == (4, 0)


def test_squares_are_the_same_from_both_sides_and_rows_are_not():
    weight = numbers(48, 64)
    squares = quantise_fp4(weight, NVFP4, square=True)
    assert torch.equal(squares, quantise_fp4(weight.t(), NVFP4, square=True).t())
    assert not torch.equal(quantise_fp4(weight, NVFP4), quantise_fp4(weight.t(), NVFP4).t())


# Rotations


@pytest.mark.parametrize("rows", [16, 48, 20, 1])
def test_a_rotation_keeps_the_product_and_spreads_an_outlier(rows):
    signs = torch.tensor([1.0, -1.0] * 8)
    x, y = numbers(rows, 5, spread=0.5).double(), numbers(rows, 3, seed=1, spread=0.5).double()
    torch.testing.assert_close(rotated(x, signs).t() @ rotated(y, signs), x.t() @ y, rtol=1e-6, atol=1e-6)
    outlier = torch.zeros(16, 1)
    outlier[3] = 8.0
    torch.testing.assert_close(rotated(outlier, signs).abs(), torch.full((16, 1), 2.0))


# The layer


def layer(recipe, inputs=24, outputs=20, seed=0):
    torch.manual_seed(0)
    return Fp4Linear(inputs, outputs, recipe=recipe, seed=seed)


def step(module, x, towards):
    module.zero_grad()
    x = x.clone().requires_grad_()
    out = module(x)
    out.backward(towards)
    return out.detach(), x.grad, module.weight.grad


X, TOWARDS = numbers(40, 24, spread=0.3), numbers(40, 20, seed=1, spread=0.3)


def test_without_ingredients_it_is_three_products_of_what_is_stored():
    module = layer(PLAIN)
    out, for_input, for_weight = step(module, X, TOWARDS)
    weight = module.weight.detach()
    torch.testing.assert_close(out, quantise_fp4(X, PLAIN) @ quantise_fp4(weight, PLAIN).t() + module.bias)
    torch.testing.assert_close(for_input, quantise_fp4(TOWARDS, PLAIN) @ quantise_fp4(weight.t(), PLAIN).t())
    torch.testing.assert_close(for_weight, quantise_fp4(TOWARDS.t(), PLAIN) @ quantise_fp4(X.t(), PLAIN).t())


@pytest.mark.parametrize("recipe", [NVFP4, MXFP4, PLAIN, replace(MXFP4, hadamard=True)])
def test_all_products_are_near_those_of_float32(recipe):
    plain = nn.Linear(24, 20)
    module = layer(recipe)
    plain.load_state_dict(module.state_dict())
    for mine, right in zip(step(module, X, TOWARDS), step(plain, X, TOWARDS), strict=True):
        error = (mine - right).norm() / right.norm()
        assert 0.01 < error < 0.35, "4 bits, and not more"


def test_coins_make_the_mean_of_many_gradients_right():
    """The input's gradient over many draws, against the product of the exact gradient and the stored weight. Rounding
    to nearest keeps its error, and coins lose theirs with the square root of the draws."""
    errors = {}
    for coins in (False, True):
        recipe = replace(NVFP4, stochastic_gradients=coins)
        module = layer(recipe)
        mean = torch.stack([step(module, X, TOWARDS)[1] for _ in range(200)]).mean(0)
        exact = TOWARDS @ quantise_fp4(module.weight.detach().t(), recipe, square=True).t()
        errors[coins] = ((mean - exact).norm() / exact.norm()).item()
    assert errors[True] < errors[False] / 3


def test_the_same_seed_gives_the_same_gradient_and_shapes_are_kept():
    one, two, other = (step(layer(NVFP4, seed=seed), X.view(4, 10, 24), TOWARDS.view(4, 10, 20)) for seed in (0, 0, 1))
    assert all(map(torch.equal, one, two))
    assert not torch.equal(one[2], other[2])
    assert one[0].shape == (4, 10, 20)
    assert one[1].shape == (4, 10, 24)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"scales": "e5m2"}, "scales = 'e5m2': expected 'e4m3'"), ({"block": 12}, "block = 12: expected a power of two")],
)
def test_recipes_that_do_not_exist_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Fp4Recipe(**arguments)
