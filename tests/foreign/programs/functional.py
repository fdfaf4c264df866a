"""Functional collectives and collectives with gradients."""

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.nn import functional as with_gradients

from programs import program


@program(ranks=2)
def functional_all_reduce():
    """Get the sum as a new tensor with all_reduce."""
    x = torch.arange(4.0) + dist.get_rank()
    total = functional.all_reduce(x, "sum", dist.group.WORLD)
    return (total + 1).tolist(), x.tolist()


@program(ranks=2)
def functional_all_gather():
    """Gather along a dimension with all_gather_tensor."""
    x = torch.arange(4.0).reshape(2, 2) + 10 * dist.get_rank()
    return [functional.all_gather_tensor(x, dim, dist.group.WORLD).tolist() for dim in (0, 1)]


@program(ranks=2)
def functional_reduce_scatter():
    """Reduce and scatter along a dimension with reduce_scatter_tensor."""
    x = torch.arange(8.0).reshape(2, 4) * (1 + dist.get_rank())
    return [functional.reduce_scatter_tensor(x, "sum", dim, dist.group.WORLD).tolist() for dim in (0, 1)]


@program(ranks=2)
def functional_all_to_all():
    """Exchange parts with all_to_all_single."""
    x = torch.arange(4.0) + 10 * dist.get_rank()
    return functional.all_to_all_single(x, None, None, dist.group.WORLD).tolist()


@program(ranks=2)
def functional_broadcast():
    """Get a copy of rank 1's tensor with broadcast."""
    return functional.broadcast(torch.full((3,), float(dist.get_rank())), 1, dist.group.WORLD).tolist()


@program(ranks=2)
def several_functional_collectives_in_one():
    """Reduce and gather several tensors with the coalesced forms."""
    tensors = [torch.ones(2) * (1 + dist.get_rank()), torch.arange(4.0) + dist.get_rank()]
    sums = functional.all_reduce_coalesced(tensors, "sum", dist.group.WORLD)
    gathered = functional.all_gather_into_tensor_coalesced(tensors, dist.group.WORLD)
    parts = functional.reduce_scatter_tensor_coalesced(tensors, "sum", [0, 0], dist.group.WORLD)
    return [[x.tolist() for x in each] for each in (sums, gathered, parts)]


@program(ranks=2)
def functional_collectives_with_gradients():
    """Differentiate through all_gather_tensor_autograd and reduce_scatter_tensor_autograd."""
    x = (torch.arange(4.0) + dist.get_rank()).requires_grad_()
    whole = functional.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
    part = functional.reduce_scatter_tensor_autograd(whole * whole, "sum", 0, dist.group.WORLD)
    part.sum().backward()
    return part.tolist(), x.grad.tolist()


@program(ranks=2)
def functional_permutation():
    """Move tensors around with permute_tensor."""
    x = torch.full((2,), float(dist.get_rank()))
    return functional.permute_tensor(x, [1, 0], dist.group.WORLD).tolist()


@program(ranks=2)
def differentiable_all_reduce():
    """Differentiate through torch.distributed.nn.functional.all_reduce."""
    x = (torch.arange(3.0) + dist.get_rank()).requires_grad_()
    with_gradients.all_reduce(x).square().sum().backward()
    return x.grad.tolist()


@program(ranks=2)
def contrastive_loss():
    """Gather embeddings of all ranks with their gradients for a contrastive loss."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    image, text = (torch.randn(3, 4, generator=generator).requires_grad_() for _ in range(2))
    images, texts = (torch.cat(with_gradients.all_gather(each)) for each in (image, text))
    logits = images @ texts.t()
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(6))
    loss.backward()
    return loss.item(), image.grad, text.grad


@program(ranks=2)
def differentiable_all_to_all():
    """Differentiate through torch.distributed.nn.functional.all_to_all_single."""
    x = (torch.arange(4.0) + dist.get_rank()).requires_grad_()
    y = with_gradients.all_to_all_single(torch.empty(4), x)
    (y * torch.arange(4.0)).sum().backward()
    return y.tolist(), x.grad.tolist()


@program(ranks=2)
def compiled_collective():
    """Compile a function that calls a functional collective, with the eager backend."""

    def step(x):
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    return torch.compile(step, backend="eager")(torch.arange(3.0) + dist.get_rank()).tolist()
