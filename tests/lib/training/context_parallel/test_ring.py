"""Ring attention on the virtual cluster against attention in one process: values, gradients, bytes, and time."""

import pytest
import torch
import torch.distributed as dist
from collectives_seen import bytes_sent
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.rope_scaling import YarnScaling
from threeloops.training.cluster import Cluster, RankFailed, advance_to, now, run_on_processes, uniform
from threeloops.training.collectives import Link
from threeloops.training.context_parallel import (
    BACKWARD_WORK,
    context_parallelize,
    ring_attention,
    ring_attention_bytes,
    ring_attention_ends,
    token_positions,
    visible_pairs,
)
from threeloops.training.mesh import Mesh
from torch.nn.functional import scaled_dot_product_attention

BATCH, HEADS, KV_HEADS, TOKENS, DIM = 2, 6, 3, 24, 5
ORDERS = ("contiguous", "zigzag")


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(dtype=torch.float64, scale=1.0):
    q = numbers(BATCH, HEADS, TOKENS, DIM)
    k, v = (numbers(BATCH, KV_HEADS, TOKENS, DIM, seed=seed) for seed in (2, 3))
    return [(scale * q).to(dtype), k.to(dtype), v.to(dtype), numbers(BATCH, HEADS, TOKENS, DIM, seed=4).to(dtype)]


def attention(order, dtype=torch.float64, scale=1.0):
    """This rank's output and gradients; forward begins at 1 s, backward at 2 s."""
    positions = token_positions(TOKENS, dist.get_rank(), dist.get_world_size(), order)
    *leaves, weight = [each[:, :, positions] for each in inputs(dtype, scale)]
    leaves = [each.clone().requires_grad_() for each in leaves]
    advance_to(1)
    out = ring_attention(*leaves, order=order)
    advance_to(2)
    (out * weight).sum().backward()
    return out.detach(), [leaf.grad for leaf in leaves]


def attention_alone(dtype=torch.float64, scale=1.0):
    *leaves, weight = inputs(dtype, scale)
    leaves = [each.clone().requires_grad_() for each in leaves]
    out = scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
    (out * weight).sum().backward()
    return out.detach(), [leaf.grad for leaf in leaves]


@pytest.fixture(scope="module", params=[(n, order) for n in (1, 2, 3, 4) for order in ORDERS], ids=str)
def run(request):
    ranks, order = request.param
    return ranks, order, Cluster(ranks).run(attention, order)


def require_parts(results, ranks, order, expected, **tolerance):
    for rank, (out, gradients) in enumerate(results):
        positions = token_positions(TOKENS, rank, ranks, order)
        for mine, whole in zip([out, *gradients], [expected[0], *expected[1]], strict=True):
            torch.testing.assert_close(mine, whole[:, :, positions], **tolerance)


def test_values_and_gradients_are_those_of_one_process(run):
    ranks, order, found = run
    require_parts(found.results, ranks, order, attention_alone(), rtol=1e-12, atol=1e-12)


def test_bytes_are_the_closed_form_and_go_to_the_next_rank_alone(run):
    ranks, _, found = run
    closed = ring_attention_bytes(BATCH, TOKENS, KV_HEADS, DIM, ranks, 8)
    block = BATCH * KV_HEADS * (TOKENS // ranks) * DIM * 8
    assert closed == (2 * (ranks - 1) * block, 4 * (ranks - 1) * block)
    for start, expected in zip((1, 2), closed, strict=True):
        assert bytes_sent(found, start, start + 1) == ranks * expected
    for message in found.messages:
        assert message.target == (message.source + 1) % ranks


def test_scores_far_apart_stay_exact():
    results = Cluster(3).run(attention, "zigzag", torch.float64, 300.0).results
    require_parts(results, 3, "zigzag", attention_alone(torch.float64, 300.0), rtol=1e-9, atol=1e-9)


def test_16_bit_inputs_are_summed_in_float32_and_their_gradients_too():
    results = Cluster(4).run(attention, "zigzag", torch.bfloat16).results
    exact = attention_alone(torch.float64)
    require_parts(
        [(out.double(), [g.double() for g in grads]) for out, grads in results],
        4, "zigzag", exact, rtol=0.02, atol=0.04,
    )  # fmt: skip
    assert all(each.dtype == torch.bfloat16 for out, grads in results for each in (out, *grads))
    run = Cluster(4).run(attention, "zigzag", torch.bfloat16)
    closed = ring_attention_bytes(BATCH, TOKENS, KV_HEADS, DIM, 4, 2)
    assert [bytes_sent(run, start, start + 1) for start in (1, 2)] == [4 * each for each in closed]


def test_the_same_program_runs_on_gloo():
    results = run_on_processes("gloo", 2, attention, "zigzag", seconds=60)
    require_parts(results, 2, "zigzag", attention_alone(), rtol=1e-12, atol=1e-12)


# Time: attention takes a stated time per pair, and a block's transfer its latency and bytes over bandwidth.

LINK = Link(10e-6, 1e9)
RING = 6  # enough for a rank to wait until the next one asks for its keys
BLOCK = 2 * BATCH * KV_HEADS * (TOKENS // RING) * DIM * 8


def timed(order, seconds_per_pair):
    positions = token_positions(TOKENS, dist.get_rank(), RING, order)
    *leaves, _ = [each[:, :, positions] for each in inputs()]
    leaves = [each.clone().requires_grad_() for each in leaves]
    out = ring_attention(*leaves, order=order, seconds_per_pair=seconds_per_pair)
    forward = now()
    advance_to(1)
    out.sum().backward()
    return forward, now() - 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seconds_per_pair", [0.0, 1e-8, 2e-7, 1e-6, 1e-4])
def test_the_forward_pass_ends_when_the_closed_form_says(order, seconds_per_pair):
    run = Cluster(uniform(RING, LINK.latency, LINK.bandwidth)).run(timed, order, seconds_per_pair)
    expected = ring_attention_ends(TOKENS, RING, order, seconds_per_pair, BLOCK, LINK)
    assert [forward for forward, _ in run.results] == pytest.approx(expected, rel=1e-12)


def test_a_transfer_hides_behind_attention_that_takes_longer():
    transfer = LINK.seconds(BLOCK)
    (first, *others), *_ = visible_pairs(TOKENS, RING)
    per_pair = 2 * transfer / others[0]
    run = Cluster(uniform(RING, LINK.latency, LINK.bandwidth)).run(timed, "zigzag", per_pair)
    computing = per_pair * (first + sum(others))
    assert [forward for forward, _ in run.results] == pytest.approx([computing] * RING, rel=1e-12)
    # backward: the last block of gradients travels when nothing is left to compute
    backward = BACKWARD_WORK * computing + transfer
    assert [seconds for _, seconds in run.results] == pytest.approx([backward] * RING, rel=1e-9)


def test_zigzag_is_nearly_twice_as_fast_as_contiguous_where_attention_decides():
    slowest = {order: max(ring_attention_ends(8192, 8, order, 1e-9, 1, LINK)) for order in ORDERS}
    assert slowest["contiguous"] / slowest["zigzag"] == pytest.approx(15 / 8, rel=1e-2)


# A GPT on parts of sequences


GPTS = {
    "plain": {},
    "variant": {"qkv_bias": True, "qk_norm": True, "head_dim": 10, "rope_scaling": YarnScaling(4.0, 8)},
}


def gpt(variant="plain", **changes):
    torch.manual_seed(0)
    sizes = {"vocabulary_size": 36, "width": 24, "heads": 4, "kv_heads": 2, "mlp_width": 20, "max_sequence": 16}
    return GPT(GPTConfig.tiny(**sizes, **GPTS[variant], **changes)).double()


def batch():
    tokens = torch.randint(36, (3, 17), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


def gpt_step(order, variant):
    group = Mesh(dp=2, cp=2).connect("cp")["cp"]
    model = gpt(variant)
    context_parallelize(model, group, order=order)
    positions = token_positions(16, dist.get_rank(group), 2, order)
    loss = model(*(each[:, positions] for each in batch()))
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("variant", GPTS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_gpt_has_the_loss_and_gradients_of_one_process_as_means_over_the_ranks(order, variant):
    model = gpt(variant)
    loss = model(*batch())
    loss.backward()
    results = Cluster(4).run(gpt_step, order, variant).results
    for pair in (results[:2], results[2:]):
        assert sum(each for each, _ in pair) / 2 == pytest.approx(loss.item(), rel=1e-12)
        for name, p in model.named_parameters():
            torch.testing.assert_close(sum(grads[name] for _, grads in pair) / 2, p.grad, rtol=1e-12, atol=1e-12)


def test_a_gpt_with_a_sliding_window_is_refused():
    with pytest.raises(ValueError, match="sliding_window = 4: ring attention sees all earlier keys"):
        context_parallelize(gpt(sliding_window=4))


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((2, 4, 8, 5), (2, 3, 8, 5), (2, 3, 8, 5)),
        ((2, 4, 8, 5), (2, 2, 8, 5), (2, 4, 8, 5)),
        ((2, 4, 8, 5), (2, 2, 4, 5), (2, 2, 4, 5)),
        ((4, 8, 5), (2, 8, 5), (2, 8, 5)),
    ],
)
def test_shapes_that_do_not_fit_are_named(q, k, v):
    with pytest.raises(RankFailed, match=r"q \(.*\), k \(.*\), v \(.*\): expected \(batch, heads, tokens, dim\)"):
        Cluster(1).run(lambda: ring_attention(torch.ones(q), torch.ones(k), torch.ones(v)))


def test_a_rank_with_an_odd_number_of_tokens_is_named():
    with pytest.raises(RankFailed, match="6 tokens cannot be cut into 4 equal chunks, which zigzag order on 2 ranks"):
        Cluster(2).run(lambda: ring_attention(*[torch.ones(1, 1, 3, 2)] * 3))
