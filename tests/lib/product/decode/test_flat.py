"""The flat step of decoding: the numbers of the model itself, from its weights as they are now."""

from contextlib import contextmanager

import pytest
import torch
from dispatched import Operators
from model_variants import VARIANTS, variant_model
from threeloops.models.gpt import GPT
from threeloops.product.batching import Engine, Policy
from threeloops.product.decode import BlockManager, ModelRunner, PagedCache, Rows
from threeloops.product.decode.flat import FlatGPT, _Product, flattened
from threeloops.product.quantized import quantize
from threeloops.product.request import Request, Sampling

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
TOKENS = [[token % 61 for token in range(start, start + length)] for start, length in ((1, 40), (20, 33), (7, 9))]
STEPS = ([9, 1, 1], [1, 1, 1], [1, 12, 1], [1, 1, 1], [40, 40, 40])
"""How many tokens of each sequence a step takes, at most."""

every_variant = pytest.mark.parametrize("name", VARIANTS)


def flat_or_skip(model):
    if (flat := flattened(model)) is model:
        pytest.skip("this PyTorch packs nothing on this CPU")
    return flat


@pytest.fixture
def model():
    return variant_model("biases").requires_grad_(False)


@pytest.fixture
def flat(model):
    return flat_or_skip(model)


@torch.inference_mode()
def logits_in_steps(model, steps=STEPS, count=None):
    """The logits of every token of the first `count` of TOKENS, one after another, in a cache of blocks of 4."""
    sequences = TOKENS[:count]
    blocks = [-(-len(tokens) // 4) for tokens in sequences]
    order = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(0)).tolist()
    tables = [[order.pop() for _ in range(count)] for count in blocks]
    cache = PagedCache(model.config, sum(blocks), 4, dtype=torch.float32, device="cpu")
    done: list[int] = [0] * len(sequences)
    found: list[list[torch.Tensor]] = [[] for _ in sequences]
    for counts in steps:
        owners = [place for place, tokens in enumerate(sequences) if done[place] < len(tokens)]
        chunks = [Rows(sequences[at][done[at] : done[at] + counts[at]], done[at], tables[at]) for at in owners]
        rows = model.head(cache.hidden(model, chunks)).split([len(chunk.tokens) for chunk in chunks])
        for owner, chunk, logits in zip(owners, chunks, rows, strict=True):
            found[owner].append(logits)
            done[owner] += len(chunk.tokens)
    return torch.cat([logits for each in found for logits in each])


@every_variant
def test_every_variant_has_a_flat_step_with_the_logits_of_the_ordinary_one(name):
    model = variant_model(name).requires_grad_(False)
    torch.testing.assert_close(logits_in_steps(flat_or_skip(model)), logits_in_steps(model), **CLOSE)


@every_variant
def test_an_engine_gives_the_same_greedy_tokens_with_either(name):
    model = variant_model(name).requires_grad_(False)
    outputs = []
    for used in (flat_or_skip(model), model):
        runner = ModelRunner(model, 30, 4)
        assert isinstance(runner.model, FlatGPT), "a runner takes the flat step where there is one"
        runner.model = used
        requests = [Request(str(n), tuple(tokens), Sampling(max_tokens=16)) for n, tokens in enumerate(TOKENS)]
        Engine(runner, BlockManager(30, 4), Policy(token_budget=16)).run(requests)
        outputs.append([request.output for request in requests])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("others", [0, 1, 2, 7, 31])
@torch.inference_mode()
def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(flat, others):
    rows = torch.randn(32, flat.config.width)
    layer = flat._layers[0]
    for part in (layer.qkv, layer.gate_and_up, layer.mlp_norm, flat.head):
        assert torch.equal(part(rows[: others + 1])[0], part(rows)[0])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("inputs", "outputs"), [(24, 80), (384, 640), (17, 33), (700, 96)])
@torch.inference_mode()
def test_one_row_alone_has_the_bits_that_it_has_among_others(flat, inputs, outputs, threads):
    product = a_product(inputs, outputs)
    rows = torch.randn(8, inputs)
    with threads_of(threads):
        assert torch.equal(product(rows[:1]), product(rows)[:1])


@pytest.mark.parametrize("inputs", [512, 513, 1056, 3000])
@torch.inference_mode()
def test_a_long_sum_of_one_row_is_as_exact_as_among_others(flat, inputs):
    product = a_product(inputs, 96)
    rows = torch.randn(8, inputs)
    exact = rows.double() @ product.weight.double().T
    error, among_others = (((got - exact[:1]).square().mean()) for got in (product(rows[:1]), product(rows)[:1]))
    assert error <= 2 * among_others


@torch.inference_mode()
def test_the_copy_for_one_row_follows_the_number_of_threads(flat):
    product = a_product(64, 96)
    row = torch.randn(1, 64)
    found = []
    for threads in (1, 2, 1):
        with threads_of(threads), Operators() as operators:
            found.append(product(row))
        assert operators.count("aten::cat") == 1, "a copy is made when the number of threads has changed"
        with threads_of(threads), Operators() as operators:
            product(row)
        assert operators.count("aten::cat") == 0, "and then it is kept"
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@torch.inference_mode()
def test_a_large_matrix_has_no_copy_for_one_row(flat):
    small = a_product(1024, 2048)
    large = a_product(1024, 2049)
    for product, copies in ((small, 1), (large, 0)):
        with Operators() as operators:
            product(torch.randn(1, 1024))
        assert operators.count("aten::embedding_bag.padding_idx", "aten::embedding_bag") == copies


def a_product(inputs, outputs):
    with torch.inference_mode(False):
        return _Product(torch.nn.Linear(inputs, outputs, bias=False).requires_grad_(False))


@contextmanager
def threads_of(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.blocks[1].mlp.up.weight.mul_(2),
        lambda model: model.blocks[0].attention.qkv.bias.mul_(2),
        lambda model: model.blocks[1].mlp_norm.weight.mul_(2),
        lambda model: model.embedding.weight.mul_(2),
        lambda model: model.load_state_dict(variant_model("biases", seed=1).state_dict()),
        lambda model: setattr(model.head, "weight", torch.nn.Parameter(0.2 * torch.randn_like(model.head.weight))),
        lambda model: setattr(model.norm, "weight", torch.nn.Parameter(2 * model.norm.weight)),
        lambda model: model.double().float(),
    ],
    ids=["matrix", "bias", "norm", "embedding", "other weights loaded", "another head", "another norm", "converted"],
)
def test_it_sees_that_a_weight_has_changed(model, flat, change, rows):
    with torch.no_grad():
        before = logits_in_steps(flat, count=rows)
        change(model)
        after = logits_in_steps(flat, count=rows)
        expected = logits_in_steps(model, count=rows)
    torch.testing.assert_close(after, expected, **CLOSE)
    assert after.equal(before) == expected.allclose(before, **CLOSE)


def test_both_ends_of_a_tied_matrix_change_together():
    model = variant_model("tied").requires_grad_(False)
    flat = flat_or_skip(model)
    before = logits_in_steps(flat)
    model.embedding.weight.mul_(2)
    torch.testing.assert_close(logits_in_steps(flat), logits_in_steps(model), **CLOSE)
    assert not logits_in_steps(flat).allclose(before, **CLOSE)


def test_it_keeps_no_weights_but_those_of_the_model(model, flat):
    layer, block = flat._layers[0], model.blocks[0]
    assert layer.qkv.weight is block.attention.qkv.weight
    assert layer.gate_and_up.weight is block.mlp.gate.weight
    assert flat.head.weight is model.head.weight


def _watch(part):
    return lambda model: model.get_submodule(part).register_forward_hook(lambda *_: None)


def _add_bias(model):
    model.blocks[1].mlp.up.bias = torch.nn.Parameter(torch.randn(model.config.mlp_width), requires_grad=False)


UNUSUAL = {
    "a hook of a linear layer": _watch("blocks.1.mlp.up"),
    "a hook of a block": _watch("blocks.0"),
    "a hook of a norm": _watch("norm"),
    "a hook of the model": _watch(""),
    "a bias that a GPT has not": _add_bias,
    "a layer of another kind": lambda model: model.blocks[1].mlp.register_module("down", Doubled(model, "down")),
    "quantized": lambda model: quantize(model, "rtn"),
    "bfloat16": lambda model: model.bfloat16(),
    "float64": lambda model: model.double(),
}


class Doubled(torch.nn.Linear):
    """A linear layer that computes something else."""

    def __init__(self, model, name):
        super().__init__(model.config.mlp_width, model.config.width, bias=False)

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("change", UNUSUAL.values(), ids=UNUSUAL)
def test_a_model_that_computes_anything_else_runs_as_it_is(model, flat, change):
    model = change(model) if change is UNUSUAL["quantized"] else (change(model), model)[1]
    assert flattened(model) is model


def test_fused_kernels_run_as_they_are():
    model = variant_model("llama", kernels="fused")
    assert flattened(model) is model


def test_weights_whose_changes_cannot_be_seen_are_not_packed():
    with torch.inference_mode():
        model = variant_model("llama")
    assert flattened(model) is model


@pytest.mark.parametrize(("count", "kind"), [(3, "_linear_pointwise"), (1, "embedding_bag")])
@torch.inference_mode()
def test_a_layer_takes_four_products(model, flat, count, kind):
    with Operators() as operators:
        logits_in_steps(flat, [(1, 1, 1)], count)
    products = sum(kind in name for name in operators.names)
    assert products == 4 * model.config.layers + 1, "qkv, output, gate and up, down; and the head"


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@torch.inference_mode()
def test_its_norm_is_pytorchs_for_small_and_large_rows(model, flat, scale):
    x = torch.randn(5, model.config.width) * scale
    torch.testing.assert_close(flat._layers[0].mlp_norm(x), model.blocks[0].mlp_norm(x), rtol=1e-5, atol=1e-6)


def test_a_new_model_of_the_same_configuration_can_be_flattened_beside_the_first(model, flat):
    other = variant_model("biases", seed=1).requires_grad_(False)
    assert isinstance(other, GPT)
    theirs = logits_in_steps(flattened(other))
    torch.testing.assert_close(theirs, logits_in_steps(other), **CLOSE)
    assert not theirs.allclose(logits_in_steps(flat), **CLOSE)
