"""Routing and its losses, on one process."""

import pytest
import torch
from threeloops.training.expert_parallel import Router, load_balancing_loss, z_loss


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def router(k=2, experts=5, width=3, **options):
    made = Router(width, experts, k, **options).double()
    made.weight.data.copy_(numbers(experts, width, seed=2))
    return made


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("normalise", [False, True])
def test_the_k_highest_scores_choose_and_weigh_best_first(k, normalise):
    x = numbers(17, 3)
    made = router(k, normalise=normalise)
    found = made(x)
    for token in range(17):
        exponentials = [(x[token] @ row).exp().item() for row in made.weight]
        scores = [each / sum(exponentials) for each in exponentials]
        best = sorted(range(5), key=lambda e: -scores[e])[:k]
        weights = [scores[e] / (sum(scores[b] for b in best) if normalise else 1) for e in best]
        assert found.experts[token].tolist() == best
        assert found.weights[token].tolist() == pytest.approx(weights, rel=1e-12)
        assert found.scores[token].tolist() == pytest.approx(scores, rel=1e-12)


def test_of_equal_scores_the_lower_expert_comes_first():
    made = Router(3, 40, 3)
    torch.nn.init.zeros_(made.weight)
    assert made(torch.ones(2, 3)).experts.tolist() == [[0, 1, 2]] * 2
    made.weight.data[7] = 1.0
    assert made(torch.ones(2, 3)).experts.tolist() == [[7, 0, 1]] * 2


def test_a_single_normalised_weight_is_1_and_teaches_the_router_nothing():
    for normalise, taught in ((True, False), (False, True)):
        made = router(1, normalise=normalise)
        made(numbers(4, 3)).weights.sum().backward()
        assert bool(made.weight.grad.abs().max() > 1e-12) is taught


def test_scores_of_16_bit_tokens_are_float32():
    found = Router(3, 4, 2).bfloat16()(torch.ones(2, 3, dtype=torch.bfloat16))
    assert (found.logits.dtype, found.scores.dtype, found.weights.dtype) == (torch.float32,) * 3


@pytest.mark.parametrize("k", [0, -1, 6])
def test_more_choices_than_experts_or_none_are_named(k):
    with pytest.raises(ValueError, match=f"k = {k} of 5 experts: expected at least 1, and no more than there are"):
        Router(3, 5, k)


def test_the_balancing_loss_is_1_for_uniform_scores_and_e_where_one_expert_gets_everything():
    made = router(1, experts=4, width=4)
    made.weight.data.copy_(torch.eye(4))
    balanced = made(torch.eye(4, dtype=torch.float64))
    assert load_balancing_loss(balanced).item() == pytest.approx(1, rel=1e-12)
    one = made(100 * torch.eye(4, dtype=torch.float64)[[2, 2, 2]])
    assert load_balancing_loss(one).item() == pytest.approx(4, rel=1e-12)


@pytest.mark.parametrize("k", [1, 3])
def test_the_losses_and_their_gradients_are_their_formulas(k):
    x = numbers(17, 3)
    made = router(k)
    found = made(x)
    balancing, z = load_balancing_loss(found), z_loss(found)
    (gradient,) = torch.autograd.grad(2 * balancing + 3 * z, made.weight)

    weight = made.weight.detach().clone().requires_grad_()
    logits = x @ weight.T
    scores = logits.exp() / logits.exp().sum(-1, keepdim=True)
    choices = [sum(e in sorted(range(5), key=lambda i: -row[i])[:k] for row in scores.tolist()) for e in range(5)]
    terms = [choices[e] / (17 * k) * scores[:, e].mean() for e in range(5)]
    expected, expected_z = 5 * sum(terms), (logits.exp().sum(-1).log() ** 2).mean()
    (expected_gradient,) = torch.autograd.grad(2 * expected + 3 * expected_z, weight)
    torch.testing.assert_close((balancing, z, gradient), (expected, expected_z, expected_gradient), rtol=1e-12, atol=0)


def test_without_tokens_both_losses_are_0():
    found = router()(numbers(0, 3))
    assert load_balancing_loss(found) == 0 and z_loss(found) == 0


def test_descent_on_the_balancing_loss_spreads_the_tokens():
    """moe-1: a router that prefers one expert learns to use all of them."""
    x, made = numbers(256, 16) + 1, Router(16, 8, 1).double()
    made.weight.data.copy_(0.1 * numbers(8, 16, seed=2))
    made.weight.data[3] += 0.1
    busiest = []
    for _ in range(200):
        found = made(x)
        busiest.append(torch.bincount(found.experts.flatten(), minlength=8).max().item())
        (gradient,) = torch.autograd.grad(load_balancing_loss(found), made.weight)
        made.weight.data -= 0.5 * gradient
    assert busiest[0] > 256 * 3 / 4 and busiest[-1] < 256 / 4
