"""A GPT cut by its plan against the same GPT in one process: values, gradients, a step of training, and its traffic."""

import pytest
import torch
import torch.distributed as dist
from collectives_seen import bytes_sent, collectives
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.cluster import Cluster, RankFailed, advance_to
from threeloops.training.mesh import Mesh
from threeloops.training.tensor_parallel import block_traffic, gpt_plan, parallelize, step_traffic

BATCH, LENGTH = 3, 8
SIZES = {
    "vocabulary_size": 36, "width": 24, "heads": 4, "kv_heads": 4, "mlp_width": 20, "max_sequence": 16,
    "qkv_bias": True, "qk_norm": True, "head_dim": 8,
}  # fmt: skip
SETTINGS = [(1, False), (2, False), (2, True), (4, False), (4, True)]


def config_for(ranks, **changes):
    """With two key and value heads for four query heads where two ranks share them."""
    return GPTConfig.tiny(**{**SIZES, "kv_heads": max(2, ranks), **changes})


def model_of(config):
    torch.manual_seed(0)
    model = GPT(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.normal_()
    return model


def batch():
    tokens = torch.randint(36, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    targets = tokens[:, 1:].clone()
    targets[0, :3] = -100
    return tokens[:, :-1], targets


def values(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def train(model, at=lambda moment: None):
    """Two steps of gradient descent, so that the second one begins with what the first one left."""
    begin, losses, found = values(model), [], None
    for step in range(2):
        at(1 + 3 * step)
        loss = model(*batch())
        at(2 + 3 * step)
        loss.backward()
        at(3 + 3 * step)
        losses.append(loss.item())
        found = found or gradients(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= parameter.grad
                parameter.grad = None
    return {"begin": begin, "gradients": found, "end": values(model), "losses": losses}


def program(config, sequence_parallel):
    model = model_of(config)
    sharded = parallelize(model, gpt_plan(sequence_parallel=sequence_parallel))
    return {**train(model, advance_to), "sharded": sharded}


def shard_of(name, whole, rank, ranks, config):
    """Rank's part of a parameter of the whole model, by definition of the plan."""
    if "qkv" in name:
        return torch.cat([part.chunk(ranks)[rank] for part in whole.split(config.qkv_widths)])
    dim = {"embedding": 0, "head": 0, "gate": 0, "up": 0, "down": 1, "output": 1}.get(name.split(".")[-2])
    return whole if dim is None else whole.chunk(ranks, dim)[rank]


@pytest.fixture(scope="module", params=SETTINGS, ids=str)
def run(request):
    ranks, sequence_parallel = request.param
    return ranks, sequence_parallel, Cluster(ranks).run(program, config_for(ranks), sequence_parallel)


def test_two_steps_of_training_are_those_of_one_process(run):
    ranks, _, found = run
    config = config_for(ranks)
    expected = train(model_of(config))
    for rank, result in enumerate(found.results):
        assert result["losses"] == pytest.approx(expected["losses"], rel=1e-12)
        for when in ("begin", "gradients", "end"):
            assert result[when].keys() == expected[when].keys()
            for name, whole in expected[when].items():
                mine = shard_of(name, whole, rank, ranks, config)
                tolerance = 0 if when == "begin" else 1e-12
                torch.testing.assert_close(result[when][name], mine, rtol=tolerance, atol=tolerance)


def test_the_names_of_shards_are_those_of_all_matrices_and_biases(run):
    ranks, _, found = run
    for result in found.results:
        assert result["sharded"] == {name for name in result["begin"] if ranks > 1 and "norm" not in name}


def test_collectives_and_bytes_of_a_step_are_the_closed_form(run):
    ranks, sequence_parallel, found = run
    config = config_for(ranks)
    for step in (0, 1):
        closed = step_traffic(config, BATCH * LENGTH, ranks, 8, sequence_parallel=sequence_parallel)
        for start, expected in zip((1 + 3 * step, 2 + 3 * step), closed, strict=True):
            assert len(collectives(found, start, start + 1)) == expected.collectives
            assert bytes_sent(found, start, start + 1) == expected.bytes
    if not sequence_parallel:
        assert set(collectives(found, 1, 3)) == {"all_reduce"}


def one_block(sequence_parallel):
    model = model_of(config_for(2, qk_norm=False))
    parallelize(model, gpt_plan(sequence_parallel=sequence_parallel))
    x = torch.ones(BATCH, LENGTH // (1 + sequence_parallel), 24, dtype=torch.float64, requires_grad=True)
    advance_to(1)
    y = model.blocks[0](x, model.rotation(0, LENGTH))
    advance_to(2)
    y.sum().backward()


def test_a_block_is_two_all_reduces_forward_and_two_backward():
    """tp-1, tp-2: after attention and after the MLP; backward, before them. Nothing is gathered."""
    run = Cluster(2).run(one_block, False)
    size = BATCH * LENGTH * 24 * 8
    for start, closed in zip((1, 2), block_traffic(BATCH * LENGTH, 24, 2, 8), strict=True):
        assert collectives(run, start, start + 1) == ["all_reduce"] * 2 and closed.collectives == 2
        assert bytes_sent(run, start, start + 1) == closed.bytes == 2 * 2 * size


def test_sequence_parallel_sends_the_same_bytes_as_halves_and_the_gradients_of_the_norms():
    run = Cluster(2).run(one_block, True)
    size = BATCH * LENGTH * 24 * 8
    forward, backward = block_traffic(BATCH * LENGTH, 24, 2, 8, sequence_parallel=True)
    assert collectives(run, 1, 2) == ["all_gather", "reduce_scatter"] * 2
    assert sorted(collectives(run, 2, 3)) == ["all_gather"] * 2 + ["all_reduce"] * 2 + ["reduce_scatter"] * 2
    assert bytes_sent(run, 1, 2) == forward.bytes == 2 * 2 * size and forward.collectives == 4
    assert bytes_sent(run, 2, 3) == backward.bytes == 2 * 2 * size + 2 * 2 * 24 * 8 and backward.collectives == 6


def test_an_untied_head_and_a_group_of_the_mesh_will_do():
    config = config_for(2, tied_embeddings=False)

    def program():
        groups = Mesh(dp=2, tp=2).connect("tp")
        model = model_of(config)
        sharded = parallelize(model, gpt_plan(sequence_parallel=True), groups["tp"])
        loss = model(*batch())
        loss.backward()
        return loss.item(), sharded, gradients(model)

    model = model_of(config)
    loss = model(*batch())
    loss.backward()
    for rank, (found, sharded, grads) in enumerate(Cluster(4).run(program).results):
        assert found == pytest.approx(loss.item(), rel=1e-12) and {"head.weight", "embedding.weight"} <= sharded
        for name, p in model.named_parameters():
            torch.testing.assert_close(grads[name], shard_of(name, p.grad, rank % 2, 2, config), rtol=1e-12, atol=1e-12)


def test_without_targets_each_rank_has_its_part_of_the_logits():
    config = config_for(2)

    def program():
        model = model_of(config)
        parallelize(model, gpt_plan())
        assert model.head.weight is model.embedding.weight
        return model(batch()[0]).detach()

    whole = model_of(config)(batch()[0]).detach()
    for rank, logits in enumerate(Cluster(2).run(program).results):
        torch.testing.assert_close(logits, whole.chunk(2, -1)[rank], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("ranks", "changes", "message"),
    [
        (4, {"kv_heads": 2}, "blocks.0.attention: kv_heads = 2 cannot be cut over 4 ranks: heads are not replicated"),
        (3, {"kv_heads": 4}, "blocks.0.attention: heads = 4 cannot be cut over 3 ranks"),
        (2, {"vocabulary_size": 37}, r"embedding: dimension 0 of shape \(37, 24\) cannot be cut into 2 equal parts"),
        (2, {"mlp_width": 21}, r"blocks.0.mlp.gate: dimension 0 of shape \(21, 24\) cannot be cut into 2 equal parts"),
    ],
)
def test_sizes_that_cannot_be_cut_are_named_with_their_module_and_the_model_stays_whole(ranks, changes, message):
    def program():
        model = model_of(GPTConfig.tiny(**{**SIZES, **changes}))
        kept = values(model), str(model), model.loss
        try:
            parallelize(model, gpt_plan())
        finally:
            after = values(model)
            assert after.keys() == kept[0].keys() and all(torch.equal(after[name], kept[0][name]) for name in after)
            assert (str(model), model.loss) == kept[1:] and model.blocks[0].attention.heads == 4
            assert not any(module._forward_pre_hooks for module in model.modules())

    with pytest.raises(RankFailed, match=message):
        Cluster(ranks).run(program)


def test_tokens_that_cannot_be_shared_are_named():
    def program():
        model = model_of(config_for(2))
        parallelize(model, gpt_plan(sequence_parallel=True))
        model(batch()[0][:, :7])

    with pytest.raises(RankFailed, match=r"dimension 1 of shape \(3, 7, 24\) cannot be cut into 2 equal parts"):
        Cluster(2).run(program)


def test_ranks_that_begin_with_other_values_are_named():
    def program():
        torch.manual_seed(dist.get_rank())
        parallelize(GPT(config_for(2)), gpt_plan())

    with pytest.raises(RankFailed, match="embedding.weight differs between ranks: build the module from the same seed"):
        Cluster(2).run(program)
