"""GPTQ: against its derivation, one column at a time with the inverse of what is left of the Hessian, in float64."""

import pytest
import torch
from threeloops.product.quantized import Scheme, gptq, output_error, quantize_weight
from threeloops.product.quantized.group import unpack


def problem(rows=5, columns=70, samples=200, seed=0, mixed=True):
    """A weight, and Σ x xᵀ of inputs whose channels hang together and differ in size."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    x = torch.randn(samples, columns, generator=generator, dtype=torch.float64)
    if mixed:
        x = x @ torch.randn(columns, columns, generator=generator, dtype=torch.float64) / columns**0.5 + x
    x = x * torch.rand(columns, generator=generator, dtype=torch.float64).mul(2).exp()
    return weight, x.T @ x


def grid(weights, scheme):
    """Scale and zero point of the columns of one group, by the definition, in float64 but for the scale's rounding."""
    top = 2**scheme.bits - 1
    if scheme.symmetric:
        scale = (2 * weights.abs().amax(1) / top).to(scheme.scale_dtype).double()
        return scale, torch.full_like(scale, 2 ** (scheme.bits - 1))
    low, high = weights.amin(1).clamp(max=0), weights.amax(1).clamp(min=0)
    scale = ((high - low) / top).to(scheme.scale_dtype).double()
    return scale, (-low / scale).round().clamp(0, top)


def one_by_one(weight, gram, scheme, damping, act_order=False):
    """Optimal Brain Quantisation in a given order: round a column, move all that are left by the least squares' answer,
    then eliminate the column from the inverse Hessian (Frantar et al., equations 2 and 3). No Cholesky, no blocks.
    """
    columns = weight.shape[1]
    order = gram.diagonal().argsort(descending=True).tolist() if act_order else list(range(columns))
    inverse = torch.linalg.inv(gram + damping * gram.diagonal().mean() * torch.eye(columns, dtype=torch.float64))
    w, result, grids = weight.clone(), torch.zeros_like(weight), {}
    for column in order:
        group = column // scheme.group
        if group not in grids:
            source = weight if act_order else w
            grids[group] = grid(source[:, group * scheme.group : (group + 1) * scheme.group], scheme)
        scale, zero = grids[group]
        codes = (torch.round(w[:, column] / scale) + zero).clamp(0, 2**scheme.bits - 1)
        result[:, column] = (codes - zero) * scale
        error = (w[:, column] - result[:, column]) / inverse[column, column]
        w -= error[:, None] * inverse[column]
        inverse = inverse - torch.outer(inverse[:, column], inverse[column]) / inverse[column, column]
    return result


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(
    ("scheme", "columns"),
    [
        (Scheme(4, 16), 70),
        (Scheme(4, 32, symmetric=False), 64),
        (Scheme(4, 256), 300),  # groups longer than a block
        (Scheme(8, 16, symmetric=False, scale_dtype=torch.float32), 33),
        (Scheme(4, 16), 1),
    ],
    ids=str,
)
def test_codes_are_those_of_one_column_at_a_time(scheme, columns, act_order):
    weight, gram = problem(columns=columns, samples=3 * columns + 10)
    actual = gptq(weight, gram, scheme, damping=0.01, act_order=act_order)
    expected = one_by_one(weight, gram, scheme, 0.01, act_order)
    torch.testing.assert_close(actual.dequantize(torch.float64), expected, rtol=1e-9, atol=1e-12)
    assert actual.nbytes == scheme.nbytes(5, columns)


@pytest.mark.parametrize("scheme", [Scheme(4, 16), Scheme(4, 32, symmetric=False), Scheme(8, 16)], ids=str)
@pytest.mark.parametrize("act_order", [False, True])
def test_the_error_of_the_outputs_is_less_than_plain_roundings(scheme, act_order):
    for seed in range(3):
        weight, gram = problem(columns=96, seed=seed)
        plain, ours = quantize_weight(weight, scheme), gptq(weight, gram, scheme, act_order=act_order)
        errors = [output_error(weight, each.dequantize(torch.float64), gram) for each in (plain, ours)]
        assert errors[1] < 0.8 * errors[0]


def test_inputs_that_have_nothing_to_do_with_one_another_leave_plain_rounding():
    weight, _ = problem()
    gram = torch.diag(torch.rand(70, dtype=torch.float64) + 0.1)
    for act_order in (False, True):
        ours, plain = gptq(weight, gram, Scheme(4, 16), act_order=act_order), quantize_weight(weight, Scheme(4, 16))
        assert torch.equal(ours.codes, plain.codes) and torch.equal(ours.scales, plain.scales)


def test_much_damping_leaves_plain_rounding_and_some_changes_the_result():
    weight, gram = problem()
    plain = quantize_weight(weight, Scheme(4, 16))
    assert torch.equal(gptq(weight, gram, Scheme(4, 16), damping=1e12).codes, plain.codes)
    little, more = (gptq(weight, gram, Scheme(4, 16), damping=each) for each in (1e-4, 1.0))
    assert not torch.equal(little.codes, more.codes)


def test_inputs_that_are_always_zero_stop_nothing():
    weight, gram = problem()
    gram[:, 3] = gram[3] = 0
    ours = gptq(weight, gram, Scheme(4, 16), damping=0)
    assert ours.dequantize().isfinite().all()
    kept = [column for column in range(70) if column != 3]
    assert output_error(weight[:, kept], ours.dequantize(torch.float64)[:, kept], gram[kept][:, kept]) < 0.01


def test_the_arguments_are_left_alone():
    weight, gram = problem()
    before = weight.clone(), gram.clone()
    gram[:, 3] = gram[3] = before[1][:, 3] = before[1][3] = 0
    gptq(weight, gram, Scheme(4, 16), act_order=True)
    assert torch.equal(weight, before[0]) and torch.equal(gram, before[1])


def test_with_the_largest_inputs_first_their_weights_are_kept_best():
    weight, gram = problem()
    largest = int(gram.diagonal().argmax())
    ours = gptq(weight, gram, Scheme(4, 16), act_order=True)
    plain = quantize_weight(weight, Scheme(4, 16))
    codes = [unpack(each.codes, 4, 70)[:, largest] for each in (ours, plain)]
    assert torch.equal(*codes)  # it comes first, so nothing has moved it


def test_output_error_is_that_of_the_outputs():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(50, 8, generator=generator, dtype=torch.float64)
    weight, other = (torch.randn(3, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    exact, wrong = x @ weight.T, x @ other.T
    expected = float((wrong - exact).square().sum() / exact.square().sum())
    assert output_error(weight, other, x.T @ x) == pytest.approx(expected)
    assert output_error(0 * weight, 0 * weight, x.T @ x) == 0


def test_errors_name_what_is_wrong():
    weight, gram = problem(columns=20, samples=10)
    with pytest.raises(ValueError, match=r"gram has shape \(20, 20\): expected \(19, 19\)"):
        gptq(weight[:, :19], gram, Scheme())
    with pytest.raises(ValueError, match="damping = -1"):
        gptq(weight, gram, Scheme(), damping=-1)
    with pytest.raises(ValueError, match="damping = 0 is not positive definite: .* 20, all finite"):
        gptq(weight, gram - 1e-3 * torch.eye(20), Scheme(), damping=0)
    with pytest.raises(ValueError, match="not finite"):
        gptq(weight / 0, gram, Scheme())
