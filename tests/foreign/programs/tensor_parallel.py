"""Tensor and sequence parallelism written by hand."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from programs import program
from programs.costs import all_gather, all_reduce, reduce_scatter


class _Copy(torch.autograd.Function):
    """Identity forward, all-reduce backward: the f of Megatron-LM."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class _Reduce(torch.autograd.Function):
    """All-reduce forward, identity backward: the g of Megatron-LM."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class _Gather(torch.autograd.Function):
    """Join the last dimension of all ranks forward, take this rank's part backward."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()].contiguous()


class _GatherSequence(torch.autograd.Function):
    """All-gather the sequence forward, reduce-scatter its gradient backward."""

    @staticmethod
    def forward(ctx, x):
        whole = torch.empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(whole, x.contiguous())
        return whole

    @staticmethod
    def backward(ctx, gradient):
        part = torch.empty(gradient.shape[0] // dist.get_world_size(), *gradient.shape[1:])
        dist.reduce_scatter_tensor(part, gradient.contiguous())
        return part


class _ScatterSequence(torch.autograd.Function):
    """Reduce-scatter forward, all-gather backward."""

    @staticmethod
    def forward(ctx, x):
        part = torch.empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
        dist.reduce_scatter_tensor(part, x.contiguous())
        return part

    @staticmethod
    def backward(ctx, gradient):
        whole = torch.empty(dist.get_world_size() * gradient.shape[0], *gradient.shape[1:])
        dist.all_gather_into_tensor(whole, gradient.contiguous())
        return whole


def _weights(*shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def _mine(weight, dim):
    return weight.chunk(dist.get_world_size(), dim)[dist.get_rank()].clone().requires_grad_()


_TOKENS = 4 * 4 * 6
"""Bytes of four tokens of width six."""


@program(ranks=2, cost=all_reduce(2, _TOKENS) * 2)
def column_and_row_linear():
    """Split a feed-forward layer by columns and then by rows: one all-reduce forward, one backward."""
    up, down = _weights((6, 8), (8, 6))
    up, down = _mine(up, 1), _mine(down, 0)
    x = torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_()
    out = _Reduce.apply(torch.relu(_Copy.apply(x) @ up) @ down)
    out.square().sum().backward()
    return out.detach(), x.grad, up.grad, down.grad


@program(ranks=2, cost=all_reduce(2, 160) * 2)
def attention_by_heads():
    """Give each rank half of the heads of an attention layer."""
    qkv, out = _weights((8, 3, 4, 2), (4, 2, 8))
    qkv, out = _mine(qkv, 2), _mine(out, 0)
    x = torch.linspace(-1, 1, 40).reshape(5, 8).requires_grad_()
    q, k, v = torch.einsum("td,dchw->chtw", _Copy.apply(x), qkv)
    heads = functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    y = _Reduce.apply(torch.einsum("htw,hwd->td", heads, out))
    y.square().sum().backward()
    return y.detach(), x.grad


@program(ranks=2, cost=all_gather(2, 16) + all_reduce(2, 48))
def columns_with_gathered_output():
    """Gather the output of a layer that is split by columns."""
    (weight,) = _weights((6, 4))
    weight = _mine(weight, 1)
    x = torch.linspace(-1, 1, 12).reshape(2, 6).requires_grad_()
    y = _Gather.apply(_Copy.apply(x) @ weight)
    (y * torch.arange(4.0)).sum().backward()
    return y.detach(), weight.grad, x.grad


@program(ranks=2, cost=all_reduce(2, 64))
def vocabulary_parallel_embedding():
    """Look up the tokens whose rows this rank holds, use zeros for the others, and sum over the ranks."""
    (table,) = _weights((10, 4))
    mine, first = _mine(table, 0), 5 * dist.get_rank()
    tokens = torch.tensor([0, 9, 4, 5])
    outside = (tokens < first) | (tokens >= first + 5)
    found = mine[(tokens - first).masked_fill(outside, 0)].masked_fill(outside[:, None], 0.0)
    y = _Reduce.apply(found)
    y.sum().backward()
    return y.detach(), mine.grad


class _VocabularyLoss(torch.autograd.Function):
    """Cross-entropy of logits whose vocabulary is divided: three all-reduces of one number per token."""

    @staticmethod
    def forward(ctx, logits, targets):
        first = dist.get_rank() * logits.shape[1]
        largest = logits.max(dim=1).values
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        shifted = logits - largest[:, None]
        local = targets - first
        inside = (local >= 0) & (local < logits.shape[1])
        predicted = shifted.gather(1, local.clamp(0, logits.shape[1] - 1)[:, None])[:, 0] * inside
        dist.all_reduce(predicted)
        total = shifted.exp().sum(dim=1)
        dist.all_reduce(total)
        ctx.save_for_backward(shifted.exp() / total[:, None], local, inside)
        return (total.log() - predicted).mean()

    @staticmethod
    def backward(ctx, gradient):
        softmax, local, inside = ctx.saved_tensors
        result = softmax.clone()
        result[inside, local[inside]] -= 1
        return result * gradient / len(result), None


@program(ranks=2, cost=all_reduce(2, 4 * 4) * 3)
def vocabulary_parallel_cross_entropy():
    """Compute cross-entropy without gathering logits that are split over the vocabulary."""
    (logits,) = _weights((4, 10))
    mine = _mine(logits, 1)
    loss = _VocabularyLoss.apply(mine, torch.tensor([0, 9, 4, 5]))
    loss.backward()
    return loss.item(), mine.grad


@program(ranks=2, cost=all_gather(2, _TOKENS // 2) * 2 + reduce_scatter(2, _TOKENS) * 2)
def sequence_parallel_layer():
    """Replace all-reduces by reduce-scatter and all-gather along the sequence."""
    up, down = _weights((6, 8), (8, 6))
    up, down = _mine(up, 1), _mine(down, 0)
    x = torch.linspace(-1, 1, 24).reshape(4, 6).chunk(2)[dist.get_rank()].clone().requires_grad_()
    out = _ScatterSequence.apply(torch.relu(_GatherSequence.apply(functional.layer_norm(x, (6,))) @ up) @ down)
    out.square().sum().backward()
    return out.detach(), x.grad, up.grad


class _OverlappedLinear(torch.autograd.Function):
    """Reduce the input's gradient while the weight's gradient is computed."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        for_input = gradient @ weight.t()
        handle = dist.all_reduce(for_input, async_op=True)
        for_weight = x.t() @ gradient
        handle.wait()
        return for_input, for_weight


@program(ranks=2, cost=all_reduce(2, _TOKENS))
def all_reduce_behind_the_weight_gradient():
    """Overlap the all-reduce of the backward pass with the gradient of the weight."""
    (weight,) = _weights((6, 8))
    weight = _mine(weight, 1)
    x = torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_()
    _OverlappedLinear.apply(x, weight).square().sum().backward()
    return x.grad, weight.grad


class _Layer(nn.Module):
    def __init__(self, full):
        super().__init__()
        self.weight = nn.Parameter(full.chunk(dist.get_world_size(), 0)[dist.get_rank()].clone())
        self.bias = nn.Parameter(torch.zeros(self.weight.shape[0]))

    def forward(self, x):
        return functional.linear(_Copy.apply(x), self.weight, self.bias)


@program(ranks=4)
def weights_made_whole_for_saving():
    """Gather the parts of a parallel layer into one weight on rank 0."""
    (full,) = _weights((8, 3))
    layer = _Layer(full)
    parts = [torch.empty(2, 3) for _ in range(4)] if dist.get_rank() == 0 else None
    dist.gather(layer.weight.detach(), parts, dst=0)
    return None if parts is None else bool(torch.cat(parts).equal(full))
