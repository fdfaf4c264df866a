"""Data parallelism written by hand."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from programs import program
from programs.costs import all_gather, all_reduce, message, reduce_scatter


def _model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False))


_FIRST, _SECOND = 4 * 12, 4 * 8
"""Bytes of the two layers."""


def _loss(model, step=0):
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    x, y = torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)
    return functional.mse_loss(model(x), y)


def _gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def _descend(model, lr=0.1):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= lr * parameter.grad
            parameter.grad = None


@program(ranks=2, cost=(all_reduce(2, _FIRST) + all_reduce(2, _SECOND)) * 3)
def gradients_one_by_one():
    """Average the gradient of each parameter with an all-reduce after the backward pass."""
    model = _model()
    for step in range(3):
        _loss(model, step).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        _descend(model)
    return parameters_to_vector(model.parameters()).detach()


@program(ranks=2, cost=all_reduce(2, _FIRST + _SECOND))
def gradients_in_one_flat_tensor():
    """Flatten all gradients into one tensor for a single all-reduce."""
    model = _model()
    _loss(model).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch._utils._flatten_dense_tensors(gradients)
    dist.all_reduce(flat)
    for gradient, mean in zip(gradients, torch._utils._unflatten_dense_tensors(flat, gradients), strict=True):
        gradient.copy_(mean / dist.get_world_size())
    return _gradients(model)


@program(ranks=2, cost=all_reduce(2, _FIRST) + all_reduce(2, _SECOND))
def hooks_that_overlap():
    """Start an asynchronous all-reduce from a hook as soon as a gradient is accumulated, and wait before the step."""
    model, handles = _model(), []

    def begin(parameter):
        parameter.grad /= dist.get_world_size()
        handles.append(dist.all_reduce(parameter.grad, async_op=True))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(begin)
    _loss(model).backward()
    for handle in handles:
        handle.wait()
    return _gradients(model)


class _Bucketed(nn.Module):
    def __init__(self, module, most):
        super().__init__()
        self.module, self.buckets, self.handles = module, [[]], []
        for parameter in reversed(list(module.parameters())):
            if sum(p.numel() for p in self.buckets[-1]) + parameter.numel() > most and self.buckets[-1]:
                self.buckets.append([])
            self.buckets[-1].append(parameter)
        for bucket in self.buckets:
            missing = {"count": len(bucket)}
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(self.hook(bucket, missing))

    def hook(self, bucket, missing):
        def ready(_):
            missing["count"] -= 1
            if missing["count"] == 0:
                missing["count"] = len(bucket)
                flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
                self.handles.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

        return ready

    def forward(self, x):
        return self.module(x)

    def finish(self):
        for bucket, flat, handle in self.handles:
            handle.wait()
            sizes = [parameter.numel() for parameter in bucket]
            for parameter, mean in zip(bucket, (flat / dist.get_world_size()).split(sizes), strict=True):
                parameter.grad.copy_(mean.view_as(parameter))
        self.handles.clear()


@program(ranks=2)
def buckets_that_overlap():
    """Group parameters into buckets, and reduce each bucket as soon as its last gradient is ready."""
    torch.manual_seed(5)
    model = _Bucketed(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), most=20)
    for step in range(2):
        _loss(model, step).backward()
        model.finish()
        _descend(model, 0.05)
    return parameters_to_vector(model.parameters()).detach()


@program(ranks=2)
def a_sharded_optimizer():
    """Update each parameter on the rank that owns it, and broadcast the new values."""
    model = _model()
    parameters = list(model.parameters())
    mine = [p for index, p in enumerate(parameters) if index % dist.get_world_size() == dist.get_rank()]
    optimizer = torch.optim.AdamW(mine, lr=0.01)
    for step in range(2):
        _loss(model, step).backward()
        for parameter in parameters:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        model.zero_grad()
        for index, parameter in enumerate(parameters):
            dist.broadcast(parameter.data, src=index % dist.get_world_size())
    return parameters_to_vector(parameters).detach(), len(optimizer.state)


@program(ranks=2, cost=reduce_scatter(2, _FIRST + _SECOND) + all_gather(2, (_FIRST + _SECOND) // 2))
def zero_1_on_a_flat_buffer():
    """Reduce-scatter a flat gradient, update this rank's part with Adam, and all-gather the weights."""
    model = _model()
    _loss(model).backward()
    gradient = _gradients(model)
    part = torch.empty(gradient.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(part, gradient)
    weights = parameters_to_vector(model.parameters()).detach()
    shard = weights.chunk(dist.get_world_size())[dist.get_rank()].clone().requires_grad_()
    shard.grad = part / dist.get_world_size()
    torch.optim.Adam([shard], lr=0.01).step()
    dist.all_gather_into_tensor(weights, shard.detach())
    vector_to_parameters(weights, model.parameters())
    return parameters_to_vector(model.parameters()).detach()


class _Gathered(torch.autograd.Function):
    """All-gather a weight in the forward pass, and reduce-scatter its gradient in the backward pass."""

    @staticmethod
    def forward(ctx, shard):
        whole = torch.empty(shard.shape[0] * dist.get_world_size(), shard.shape[1])
        dist.all_gather_into_tensor(whole, shard)
        return whole

    @staticmethod
    def backward(ctx, gradient):
        part = torch.empty(gradient.shape[0] // dist.get_world_size(), gradient.shape[1])
        dist.reduce_scatter_tensor(part, gradient.contiguous())
        return part / dist.get_world_size()


@program(ranks=2, cost=all_gather(2, _FIRST // 2) + all_gather(2, _SECOND // 2)
         + reduce_scatter(2, _SECOND) + reduce_scatter(2, _FIRST))  # fmt: skip
def zero_3_with_an_autograd_function():
    """Gather each layer's weight from its shards just before it is used."""
    model, place = _model(), dist.get_rank()
    shards = [p.detach().chunk(2)[place].clone().requires_grad_() for p in model.parameters()]
    x = torch.ones(2, 3) * (1 + place)
    hidden = torch.tanh(x @ _Gathered.apply(shards[0]).t())
    (hidden @ _Gathered.apply(shards[1]).t()).square().sum().backward()
    return [shard.grad.tolist() for shard in shards]


@program(ranks=4)
def parameters_of_rank_0():
    """Broadcast a state_dict from rank 0 before training, as Horovod's broadcast_parameters does."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False))
    for value in model.state_dict().values():
        dist.broadcast(value, src=0)
    return parameters_to_vector(model.parameters()).detach()


@program(ranks=2)
def averages_with_compression():
    """Average tensors by name with an optional conversion to float16, as Horovod's allreduce does."""

    def average(tensor, compress):
        sent = tensor.half() if compress else tensor.clone()
        dist.all_reduce(sent)
        return (sent.to(tensor.dtype) / dist.get_world_size()).tolist()

    x = torch.linspace(0, 1, 5) * (1 + dist.get_rank())
    return average(x, False), average(x, True)


@program(ranks=2, cost=all_reduce(2, _FIRST + _SECOND) * 2)
def local_sgd():
    """Train each rank on its own for two steps, and then average the weights."""
    model = _model()
    for step in range(4):
        _loss(model, step).backward()
        _descend(model)
        if step % 2:
            weights = parameters_to_vector(model.parameters()).detach()
            dist.all_reduce(weights)
            vector_to_parameters(weights / dist.get_world_size(), model.parameters())
    return parameters_to_vector(model.parameters()).detach()


@program(ranks=2, cost=(all_reduce(2, _FIRST) + all_reduce(2, _SECOND)) * 2)
def diloco():
    """Train each rank on its own with AdamW, and apply the mean change with an outer Nesterov optimizer."""
    model = _model()
    anchor = [parameter.detach().clone() for parameter in model.parameters()]
    outer = torch.optim.SGD(anchor, lr=0.7, momentum=0.9, nesterov=True)
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    for round_number in range(2):
        for step in range(3):
            inner.zero_grad()
            _loss(model, 3 * round_number + step).backward()
            inner.step()
        for start, parameter in zip(anchor, model.parameters(), strict=True):
            start.grad = start - parameter.detach()
            dist.all_reduce(start.grad, op=dist.ReduceOp.AVG)
        outer.step()
        for start, parameter in zip(anchor, model.parameters(), strict=True):
            parameter.data.copy_(start)
    return parameters_to_vector(model.parameters()).detach()


@program(ranks=4, cost=message(_FIRST + _SECOND, at_once=4) * 2)
def gossip():
    """Average with one neighbour at a time, left and right in turn."""
    rank, world = dist.get_rank(), dist.get_world_size()
    weights = torch.full(((_FIRST + _SECOND) // 4,), float(rank))
    for step in range(2):
        peer = (rank + (1 if (rank + step) % 2 == 0 else -1)) % world
        theirs = torch.empty_like(weights)
        for handle in (dist.isend(weights, peer), dist.irecv(theirs, peer)):
            handle.wait()
        weights = (weights + theirs) / 2
    return weights.tolist()


@program(ranks=3)
def majority_of_signs():
    """Send only the signs of the gradients, and let the majority decide."""
    model = _model()
    _loss(model).backward()
    votes = _gradients(model).sign().to(torch.int8)
    dist.all_reduce(votes)
    return votes.sign().tolist()


@program(ranks=2)
def the_largest_gradients():
    """Send the largest entries of the gradient with their indices, and keep the rest for the next step."""
    model = _model()
    _loss(model).backward()
    gradient = _gradients(model)
    places = gradient.abs().topk(4).indices.sort().values
    all_places = [torch.empty_like(places) for _ in range(2)]
    all_values = [torch.empty(4) for _ in range(2)]
    dist.all_gather(all_places, places)
    dist.all_gather(all_values, gradient[places])
    total = torch.zeros_like(gradient)
    for where, values in zip(all_places, all_values, strict=True):
        total.index_add_(0, where, values)
    return total, gradient.index_fill(0, places, 0)


@program(ranks=2)
def norm_of_sharded_gradients():
    """Clip sharded gradients by their global norm."""
    part = torch.arange(1.0, 5.0) * (1 + dist.get_rank())
    squares = part.square().sum().double().reshape(1)
    dist.all_reduce(squares)
    norm = math.sqrt(squares.item())
    return norm, (part * min(1.0, 1.0 / norm)).tolist()


@program(ranks=2)
def loss_scaling_that_skips_together():
    """Skip the step on all ranks if one of them finds an infinite gradient."""
    scale, skipped = 8.0, []
    for step in range(3):
        gradient = torch.tensor([1.0, float("inf") if (dist.get_rank(), step) == (1, 1) else 2.0])
        found = (~gradient.isfinite()).any().float()
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        skipped.append(bool(found))
        scale = scale / 2 if found else scale * 2
    return scale, skipped
