"""Attention in blocks: put together, it is softmax over all keys."""

import torch
from threeloops.training.context_parallel import attend_block, block_gradients, merge


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_blocks_merge_to_the_softmax_over_all_keys_also_where_scores_are_far_apart():
    q, k, v = numbers(2, 3, 2, 5, 4), numbers(2, 3, 9, 4, seed=2), numbers(2, 3, 9, 4, seed=3)
    k[:, :, 6:] *= 2000
    out, log_sum = torch.zeros_like(q), torch.full(q.shape[:-1], -torch.inf, dtype=torch.float64)
    for keys in (slice(0, 2), slice(2, 6), slice(6, 9)):
        out, log_sum = merge(out, log_sum, *attend_block(q, k[:, :, keys], v[:, :, keys], False))
    scores = q @ k[:, :, None].mT / 2
    torch.testing.assert_close(log_sum, scores.logsumexp(-1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out, scores.softmax(-1) @ v[:, :, None], rtol=1e-12, atol=1e-12)


def test_a_causal_block_sees_the_keys_up_to_its_own_position():
    q, k, v = numbers(1, 1, 1, 6, 4), numbers(1, 1, 6, 4, seed=2), numbers(1, 1, 6, 4, seed=3)
    out, _ = attend_block(q, k, v, True)
    for query in range(6):
        alone, _ = attend_block(q[..., query : query + 1, :], k[:, :, : query + 1], v[:, :, : query + 1], False)
        torch.testing.assert_close(out[..., query : query + 1, :], alone, rtol=1e-12, atol=1e-12)


def test_gradients_of_blocks_add_up_to_those_of_autograd():
    q, k, v = numbers(2, 3, 2, 5, 4), numbers(2, 3, 10, 4, seed=2), numbers(2, 3, 10, 4, seed=3)
    weight = numbers(*q.shape, seed=4)
    leaves = [each.clone().requires_grad_() for each in (q, k, v)]
    scores = leaves[0] @ leaves[1][:, :, None].mT / 2
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    visible = torch.cat([torch.ones(5, 5, dtype=torch.bool), causal], 1)
    scores = scores.masked_fill(~visible, -torch.inf)
    out = scores.softmax(-1) @ leaves[2][:, :, None]
    (out * weight).sum().backward()
    inner, log_sum = (weight * out).sum(-1).detach(), scores.logsumexp(-1).detach()
    first = block_gradients(q, k[:, :, :5], v[:, :, :5], False, log_sum, weight, inner)
    second = block_gradients(q, k[:, :, 5:], v[:, :, 5:], True, log_sum, weight, inner)
    found = first[0] + second[0], torch.cat([first[1], second[1]], 2), torch.cat([first[2], second[2]], 2)
    torch.testing.assert_close(found, tuple(each.grad for each in leaves), rtol=1e-12, atol=1e-12)
