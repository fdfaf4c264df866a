"""Long sequences and experts."""

import math

import torch
import torch.distributed as dist
from torch.nn import functional

from programs import program
from programs.costs import all_gather, all_to_all, message


def _qkv(tokens=8, heads=2, width=4):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(heads, tokens, width, generator=generator) for _ in range(3)]


def _part(x, dim=1):
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()


def _passed_on(tensors):
    """Send tensors to the next rank while receiving those of the previous one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    received = [torch.empty_like(x) for x in tensors]
    operations = [dist.P2POp(dist.isend, x, (rank + 1) % world) for x in tensors]
    operations += [dist.P2POp(dist.irecv, x, (rank - 1) % world) for x in received]
    for handle in dist.batch_isend_irecv(operations):
        handle.wait()
    return received


def _merged(out, scale, block, block_scale):
    """Two partial attentions in one: outputs are weighted by their log-sum-exp."""
    total = torch.logaddexp(scale, block_scale)
    return out * (scale - total).exp()[..., None] + block * (block_scale - total).exp()[..., None], total


def _attention(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


@program(ranks=4, cost=message(2 * 64, at_once=4) * 3)
def ring_attention():
    """Pass keys and values around a ring, and merge partial attentions by their log-sum-exp."""
    q, k, v = map(_part, _qkv())
    out, scale = _attention(q, k, v)
    for _ in range(dist.get_world_size() - 1):
        k, v = _passed_on([k, v])
        out, scale = _merged(out, scale, *_attention(q, k, v))
    return out


@program(ranks=2, cost=message(2 * 128, at_once=2))
def causal_ring_attention():
    """Skip future blocks in a ring, and mask within this rank's own block."""
    q, k, v = map(_part, _qkv())
    rank, tokens = dist.get_rank(), q.shape[1]
    out, scale = _attention(q, k, v, torch.ones(tokens, tokens, dtype=torch.bool).tril())
    for step in range(1, dist.get_world_size()):
        k, v = _passed_on([k, v])
        if step <= rank:
            out, scale = _merged(out, scale, *_attention(q, k, v))
    return out


class _RingAttention(torch.autograd.Function):
    """Attention whose backward pass sends keys, values and their gradients around once more."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        out, scale = _attention(q, k, v)
        for _ in range(dist.get_world_size() - 1):
            k, v = _passed_on([k, v])
            out, scale = _merged(out, scale, *_attention(q, k, v))
        ctx.out, ctx.scale = out, scale
        return out

    @staticmethod
    def backward(ctx, gradient):
        q, k, v = ctx.saved_tensors
        root = math.sqrt(q.shape[-1])
        for_q, for_k, for_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        delta = (gradient * ctx.out).sum(-1, keepdim=True)
        for _ in range(dist.get_world_size()):
            p = (q @ k.transpose(-1, -2) / root - ctx.scale[..., None]).exp()
            for_scores = p * (gradient @ v.transpose(-1, -2) - delta) / root
            for_q += for_scores @ k
            for_k += for_scores.transpose(-1, -2) @ q
            for_v += p.transpose(-1, -2) @ gradient
            k, v, for_k, for_v = _passed_on([k, v, for_k, for_v])
        return for_q, for_k, for_v


@program(ranks=2)
def ring_attention_with_gradients():
    """Run ring attention backward, with the gradients of keys and values travelling along."""
    q, k, v = (_part(x).requires_grad_() for x in _qkv())
    _RingAttention.apply(q, k, v).square().sum().backward()
    return q.grad, k.grad, v.grad


@program(ranks=2, cost=all_to_all(2, 4 * 4 * 4) * 4)
def heads_instead_of_tokens():
    """Exchange tokens for heads with all-to-all before attention, and back afterwards, as DeepSpeed-Ulysses does."""
    world = dist.get_world_size()

    def exchanged(x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x)
        return out

    def by_heads(x):
        parts = exchanged(_part(x))  # one head for each rank
        return parts.reshape(world, -1, x.shape[2]).flatten(0, 1)

    q, k, v = map(by_heads, _qkv())
    out, _ = _attention(q, k, v)
    return exchanged(out.reshape(world, -1, out.shape[1]))


@program(ranks=2, cost=all_gather(2, 128) * 2)
def gathered_keys_and_values():
    """Gather keys and values of the whole sequence, and mask by positions."""
    q, k, v = map(_part, _qkv())
    whole = []
    for x in (k, v):
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x)
        whole.append(torch.cat(parts, dim=1))
    rows = torch.arange(4) + 4 * dist.get_rank()
    out, _ = _attention(q, *whole, mask=rows[:, None] >= torch.arange(8))
    return out


@program(ranks=2, cost=all_gather(2, 16))
def zigzag_order():
    """Give each rank a chunk from the front and one from the back, and restore the order afterwards."""
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = torch.arange(8.0).chunk(2 * world)
    mine = torch.cat([chunks[rank], chunks[2 * world - 1 - rank]])
    parts = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(parts, mine * 10)
    halves = [part.chunk(2) for part in parts]
    return torch.cat([first for first, _ in halves] + [second for _, second in reversed(halves)]).tolist()


@program(ranks=4, cost=message(16, at_once=3))
def edge_of_the_sequence_before():
    """Receive the last tokens of the previous rank for a convolution."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, edge = torch.arange(8.0) + 8 * rank, torch.zeros(4)
    sent = dist.isend(x[-4:], rank + 1) if rank < world - 1 else None
    if rank > 0:
        dist.recv(edge, rank - 1)
    if sent is not None:
        sent.wait()
    return functional.conv1d(torch.cat([edge, x])[None, None], torch.ones(1, 1, 5)).flatten().tolist()


class _Exchange(torch.autograd.Function):
    """All-to-all with split sizes forward, and with the same sizes the other way round backward."""

    @staticmethod
    def forward(ctx, x, gives, takes):
        ctx.sizes = gives, takes
        out = x.new_empty(sum(takes), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), takes, gives)
        return out

    @staticmethod
    def backward(ctx, gradient):
        gives, takes = ctx.sizes
        out = gradient.new_empty(sum(gives), *gradient.shape[1:])
        dist.all_to_all_single(out, gradient.contiguous(), gives, takes)
        return out, None, None


@program(ranks=2)
def mixture_of_experts():
    """Send each token to the rank of its expert and back, with uneven all-to-alls and their gradients."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randn(5, 3, generator=generator).requires_grad_()
    expert = (tokens.detach().sum(dim=1) > 0.3 * dist.get_rank()).long()
    order = expert.argsort(stable=True)
    gives = torch.bincount(expert, minlength=2)
    takes = torch.empty_like(gives)
    dist.all_to_all_single(takes, gives)
    weight = torch.full((3, 3), 1.0 + dist.get_rank()).requires_grad_()
    there = _Exchange.apply(tokens[order], gives.tolist(), takes.tolist())
    back = _Exchange.apply(torch.tanh(there @ weight), takes.tolist(), gives.tolist())
    out = torch.empty_like(back).index_copy(0, order, back)
    out.square().sum().backward()
    return out.detach(), tokens.grad, weight.grad, takes.tolist()


@program(ranks=2)
def balance_of_the_experts():
    """Compute the load-balancing loss of a router from counts and probabilities of all ranks."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    probabilities = torch.randn(6, 4, generator=generator).softmax(dim=1)
    counts = torch.bincount(probabilities.argmax(dim=1), minlength=4).float()
    means = probabilities.mean(dim=0)
    dist.all_reduce(counts)
    dist.all_reduce(means, op=dist.ReduceOp.AVG)
    return (4 * (counts / counts.sum() * means).sum()).item()
