"""Embedding and cross-entropy with a cut vocabulary, against torch's on the whole one, in float64."""

import math

import pytest
import torch
import torch.distributed as dist
from collectives_seen import bytes_sent, collectives
from threeloops.training.cluster import Cluster, RankFailed, advance_to
from threeloops.training.tensor_parallel import (
    VocabularyParallelEmbedding,
    loss_traffic,
    sharded,
    vocabulary_parallel_cross_entropy,
)
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, SHAPE = 12, 5, (3, 7)
TOKENS = torch.randint(VOCABULARY, SHAPE, generator=torch.Generator().manual_seed(3))
TOKENS[0, :4] = torch.tensor([0, VOCABULARY - 1, 0, 3])


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def whole_embedding():
    torch.manual_seed(0)
    return nn.Embedding(VOCABULARY, WIDTH).double()


def logits_of(case):
    logits = 3 * numbers(*SHAPE, VOCABULARY)
    if case == "huge":
        logits[0, 0] += 1e5
        logits[0, 1, 2] = 1e4
    return logits


def targets_of(case):
    targets = TOKENS.clone()
    if case == "ignored":
        targets[1, 2:] = targets[0, 0] = -100
    if case == "ignored 3":
        targets[2] = 3
    return targets


CASES = ("plain", "huge", "ignored", "ignored 3")


def ignored_id(case):
    return 3 if case == "ignored 3" else -100


def program(ranks):
    embedding = VocabularyParallelEmbedding(whole_embedding())
    x = embedding(TOKENS)
    (x * numbers(*SHAPE, WIDTH)).sum().backward()
    losses = []
    for number, case in enumerate(CASES):
        mine = logits_of(case).chunk(ranks, -1)[dist.get_rank()].clone().requires_grad_()
        advance_to(1 + 2 * number)
        loss = vocabulary_parallel_cross_entropy(mine, targets_of(case), ignore_index=ignored_id(case))
        advance_to(2 + 2 * number)
        (2 * loss).backward()
        losses.append((loss.detach(), mine.grad))
    return x.detach(), embedding.weight.grad, losses


@pytest.fixture(scope="module", params=[1, 2, 4])
def run(request):
    return request.param, Cluster(request.param).run(program, request.param)


def test_rows_and_their_gradients_are_those_of_the_whole_embedding(run):
    ranks, found = run
    whole = whole_embedding()
    x = whole(TOKENS)
    (x * numbers(*SHAPE, WIDTH)).sum().backward()
    for rank, (out, gradient, _) in enumerate(found.results):
        assert torch.equal(out, x)
        torch.testing.assert_close(gradient, whole.weight.grad.chunk(ranks)[rank], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_of_the_whole_logits(run, case):
    ranks, found = run
    logits = logits_of(case).requires_grad_()
    loss = functional.cross_entropy(logits.flatten(0, 1), targets_of(case).flatten(), ignore_index=ignored_id(case))
    (2 * loss).backward()
    for rank, (_, _, losses) in enumerate(found.results):
        value, gradient = losses[CASES.index(case)]
        torch.testing.assert_close(value, loss.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient, logits.grad.chunk(ranks, -1)[rank], rtol=1e-12, atol=1e-14)


def test_the_loss_sends_three_numbers_per_token_forward_and_nothing_backward(run):
    ranks, found = run
    tokens = math.prod(SHAPE)
    assert collectives(found, 1, 2) == ["all_reduce"] * 2 and collectives(found, 2, 3) == []
    assert bytes_sent(found, 1, 2) == loss_traffic(tokens, ranks, 8).bytes == 2 * (ranks - 1) * 3 * tokens * 8
    assert loss_traffic(tokens, ranks, 8).collectives == 2


def test_16_bit_logits_are_summed_in_float32():
    def in_bfloat16():
        mine = logits_of("plain").bfloat16().chunk(2, -1)[dist.get_rank()].clone().requires_grad_()
        loss = vocabulary_parallel_cross_entropy(mine, TOKENS)
        loss.backward()
        return loss.detach(), mine.grad.dtype

    expected = functional.cross_entropy(logits_of("plain").bfloat16().float().flatten(0, 1), TOKENS.flatten())
    for loss, dtype in Cluster(2).run(in_bfloat16).results:
        assert (loss.dtype, dtype) == (torch.float32, torch.bfloat16)
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)


def test_of_ignored_targets_alone_the_mean_is_nan_as_torchs():
    def program():
        return vocabulary_parallel_cross_entropy(torch.zeros(3, 2), torch.full((3,), -100)).item()

    assert all(map(math.isnan, Cluster(2).run(program).results))


def test_sequence_parallel_scatters_the_rows_along_tokens():
    def program():
        embedding = VocabularyParallelEmbedding(whole_embedding(), output=sharded(1))
        advance_to(1)
        x = embedding(TOKENS[:, :6])
        advance_to(2)
        (x * numbers(3, 6, WIDTH).chunk(2, 1)[dist.get_rank()]).sum().backward()
        return x.detach(), embedding.weight.grad

    whole = whole_embedding()
    x = whole(TOKENS[:, :6])
    (x * numbers(3, 6, WIDTH)).sum().backward()
    run = Cluster(2).run(program)
    assert (collectives(run, 1, 2), collectives(run, 2, 3)) == (["reduce_scatter"], ["all_gather"])
    for rank, (out, gradient) in enumerate(run.results):
        assert torch.equal(out, x.detach().chunk(2, 1)[rank])
        torch.testing.assert_close(gradient, whole.weight.grad.chunk(2)[rank], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("bad", [-1, VOCABULARY])
def test_ids_outside_of_the_vocabulary_are_named(bad):
    tokens = torch.tensor([1, bad])
    with pytest.raises(
        RankFailed, match=rf"tokens from .* to .*: expected ids of the vocabulary, 0 to {VOCABULARY - 1}"
    ):
        Cluster(2).run(lambda: VocabularyParallelEmbedding(whole_embedding())(tokens))
    with pytest.raises(RankFailed, match="targets from .*: expected ids of the vocabulary, 0 to 11"):
        Cluster(2).run(lambda: vocabulary_parallel_cross_entropy(torch.zeros(2, 6), tokens))


def test_no_tokens_have_no_rows():
    def program():
        return VocabularyParallelEmbedding(whole_embedding())(torch.empty(2, 0, dtype=torch.long)).shape

    assert Cluster(2).run(program).results == ((2, 0, WIDTH),) * 2


@pytest.mark.parametrize("option", [{"padding_idx": 0}, {"max_norm": 1.0}, {"sparse": True}])
def test_what_a_cut_embedding_cannot_do_is_refused(option):
    with pytest.raises(RankFailed, match="expected an embedding without padding_idx, max_norm and sparse"):
        Cluster(2).run(lambda: VocabularyParallelEmbedding(nn.Embedding(4, 2, **option)))
