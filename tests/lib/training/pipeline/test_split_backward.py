"""A divided backward pass has the gradients of a whole one, and runs no node twice that it need not."""

import pytest
import torch
from threeloops.training.cluster import charge
from threeloops.training.pipeline import input_backward
from torch import nn


class Chain(nn.Module):
    """Layers in a row."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x


class Both(torch.autograd.Function):
    """A node with two outputs, on which a weight hangs."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight, x + weight

    @staticmethod
    def backward(ctx, of_product, of_sum):
        x, weight = ctx.saved_tensors
        return of_product * weight + of_sum, (of_product * x + of_sum).sum(0)


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5))

    def forward(self, x):
        product, total = Both.apply(x, self.weight)
        return product.sin() * total.cos()


class Tangled(nn.Module):
    """A weight used twice with another layer between, a weight without a path to the input, an unused one, a frozen
    one, a residual, and a scale of one element."""

    def __init__(self):
        super().__init__()
        self.twice, self.between, self.aside = nn.Linear(5, 5), nn.Linear(5, 5), nn.Parameter(torch.randn(5))
        self.unused, self.frozen, self.scale = nn.Linear(5, 5), nn.Linear(5, 5), nn.Parameter(torch.randn(()))
        self.frozen.requires_grad_(False)

    def forward(self, x):
        hidden = self.twice(self.between(self.twice(x)).tanh()) + x
        return self.frozen(hidden * self.scale) + (self.aside * 2).exp()


def gradients(module):
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def whole(module, x, gradient):
    module.zero_grad()
    x = x.detach().requires_grad_(x.requires_grad)
    torch.autograd.backward([module(x)], [gradient])
    return x.grad, gradients(module)


def divided(module, x, gradient):
    """The gradient of the input before the second part, and those of the weights before and after."""
    module.zero_grad()
    x = x.detach().requires_grad_(x.requires_grad)
    weights = [p for p in module.parameters() if p.requires_grad]
    of_x, rest = input_backward(module(x), gradient, x, weights)
    before = gradients(module)
    rest()
    return of_x, before, gradients(module)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Chain(nn.Linear(5, 5)),
        lambda: Chain(nn.Linear(5, 5), nn.LayerNorm(5), nn.Linear(5, 5, bias=False)),
        Tangled,
        lambda: Chain(Tangled(), nn.Linear(5, 5), Tangled()),
        TwoOutputs,
        lambda: Chain(nn.Linear(5, 5), TwoOutputs()),
        nn.Identity,
        nn.Tanh,
    ],
)
def test_gradients_are_those_of_a_whole_backward_and_weights_get_theirs_in_the_second_part(make):
    torch.manual_seed(0)
    module = make().double()
    x, gradient = torch.randn(3, 5, dtype=torch.float64, requires_grad=True), torch.randn(3, 5, dtype=torch.float64)
    of_x, of_weights = whole(module, x, gradient)
    found, before, after = divided(module, x, gradient)
    torch.testing.assert_close(found, of_x, rtol=1e-13, atol=1e-15)
    assert all(each is None for each in before)
    for ours, theirs in zip(after, of_weights, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)


def test_gradients_accumulate_and_hooks_of_weights_run_in_the_second_part():
    module = Chain(nn.Linear(5, 5)).double()
    calls = []
    module.layers[0].weight.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad.clone()))
    x, gradient = torch.randn(3, 5, dtype=torch.float64, requires_grad=True), torch.ones(3, 5, dtype=torch.float64)
    for _ in range(2):
        _, rest = input_backward(module(x), gradient, x, list(module.parameters()))
        before = len(calls)
        rest()
        assert len(calls) == before + 1
    torch.testing.assert_close(calls[1], 2 * calls[0], rtol=1e-12, atol=0)
    assert x.grad is None


def test_a_loss_begins_with_a_gradient_of_one():
    module = Chain(nn.Linear(5, 1)).double()
    x = torch.randn(1, 5, dtype=torch.float64, requires_grad=True)
    of_x, rest = input_backward(module(x).sum(), None, x, list(module.parameters()))
    rest()
    found = of_x, module.layers[0].weight.grad.clone()
    expected, (of_weight, _) = whole(module, x, torch.ones(1, 1, dtype=torch.float64))
    torch.testing.assert_close(found, (expected, of_weight), rtol=1e-13, atol=1e-15)


def test_without_an_input_that_needs_a_gradient_all_is_left_for_the_second_part():
    module = Chain(nn.Linear(5, 5), nn.Linear(5, 5)).double()
    x, gradient = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    _, of_weights = whole(module, x, gradient)
    found, before, after = divided(module, x, gradient)
    assert found is None and all(each is None for each in before)
    torch.testing.assert_close(after, of_weights, rtol=1e-13, atol=1e-15)


def test_an_output_without_a_graph_or_apart_from_the_input():
    x = torch.randn(3, 5, requires_grad=True)
    of_x, rest = input_backward(x.detach() * 2, torch.ones(3, 5), x, [])
    rest()
    assert of_x is None
    weight = torch.ones(3, 5, requires_grad=True)
    of_x, rest = input_backward(weight * 2, torch.ones(3, 5), x, [weight])
    assert of_x is None and weight.grad is None
    rest()
    assert weight.grad.eq(2).all()


def test_the_second_part_runs_none_of_what_the_first_one_ran():
    """Nodes between output and input charge their time once; each matrix product of a backward runs once as well."""
    seen = []

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            seen.append("node")
            return gradient

    module = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5))
    x = torch.randn(3, 5, requires_grad=True)
    output = charge(Seen.apply(module[2](Seen.apply(module[1](Seen.apply(module[0](x)))))), 0.0, 0.0)
    with torch.profiler.profile(acc_events=True) as first:
        _, rest = input_backward(output, torch.ones(3, 5), x, list(module.parameters()))
    with torch.profiler.profile(acc_events=True) as second:
        rest()
    assert seen == ["node"] * 3
    products = [sum(e.count for e in p.key_averages() if e.key == "aten::mm") for p in (first, second)]
    assert products == [3, 3]
