"""Matrices packed for this CPU: the same numbers, from the same weights, whatever rows are computed together."""

import pytest
import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.packed import packed
from torch.utils._python_dispatch import TorchDispatchMode

TOKENS = torch.arange(24).view(2, 12) * 7


class _Products(TorchDispatchMode):
    """Counts the products of matrices."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        self.count += "_linear_pointwise" in operator.name()
        return operator(*arguments, **(named or {}))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(qkv_bias=True)).eval()


@pytest.fixture
def packed_model(model):
    if (found := packed(model)) is model:
        pytest.skip("this PyTorch packs nothing on this CPU")
    return found


@torch.inference_mode()
def test_a_packed_model_gives_the_logits_of_its_model(model, packed_model):
    torch.testing.assert_close(packed_model(TOKENS), model(TOKENS), rtol=1e-5, atol=1e-6)


@torch.inference_mode()
def test_it_holds_the_weights_of_its_model_and_no_others(model, packed_model):
    ours, theirs = (dict(each.named_parameters()) for each in (packed_model, model))
    assert ours.keys() == theirs.keys()
    assert all(ours[name] is theirs[name] for name in theirs)


@pytest.mark.parametrize("others", [0, 1, 2, 7, 31])
@torch.inference_mode()
def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(packed_model, others):
    rows = torch.randn(32, 1, packed_model.config.width)
    block = packed_model.blocks[0]
    for part in (block.mlp, block.mlp_norm):
        assert torch.equal(part(rows[: others + 1])[0], part(rows)[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.blocks[1].mlp.up.weight.mul_(2),
        lambda model: model.load_state_dict(GPT(model.config).state_dict()),
        lambda model: setattr(model.blocks[0].mlp, "down", model.blocks[0].mlp.down.double().float()),
        lambda model: setattr(model.head, "weight", torch.nn.Parameter(0.02 * torch.randn_like(model.head.weight))),
    ],
    ids=["in place", "other weights loaded", "converted and back", "another parameter"],
)
def test_it_sees_that_a_weight_has_changed(model, packed_model, change):
    with torch.no_grad():
        before = packed_model(TOKENS)
        change(model)
        after = packed_model(TOKENS)
        torch.testing.assert_close(after, model(TOKENS), rtol=1e-5, atol=1e-6)
        assert after.equal(before) == model(TOKENS).allclose(before, rtol=1e-5, atol=1e-6)


def test_layers_that_somebody_watches_stay_as_they_are(model, packed_model):
    seen = []
    block = model.blocks[0]
    watched = {"up": block.mlp.up, "mlp": block.mlp, "norm": block.mlp_norm, "output": block.attention.output}
    for name, layer in watched.items():
        layer.register_forward_hook(lambda *_, name=name: seen.append(name))
    packed(model)(TOKENS)
    assert seen == ["output", "norm", "up", "mlp"]


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@torch.inference_mode()
def test_the_norm_of_a_packed_model_is_pytorchs_for_small_and_large_rows(model, packed_model, scale):
    x = torch.randn(5, 3, model.config.width) * scale
    norm, own = model.blocks[0].mlp_norm, packed_model.blocks[0].mlp_norm
    norm.weight.normal_()
    torch.testing.assert_close(own(x), norm(x), rtol=1e-5, atol=1e-6)


@torch.inference_mode()
def test_a_step_of_a_packed_model_takes_fewer_products(model, packed_model):
    with _Products() as products:
        packed_model(TOKENS)
    assert products.count == 4 * model.config.layers + 1, "qkv, output, gate and up, down; and the head"


@pytest.mark.parametrize("layer", ["gate", "up", "down"])
@torch.inference_mode()
def test_a_bias_that_somebody_added_to_an_mlp_is_added(model, layer):
    linear = getattr(model.blocks[0].mlp, layer)
    linear.bias = torch.nn.Parameter(torch.randn(linear.out_features))
    torch.testing.assert_close(packed(model)(TOKENS), model(TOKENS), rtol=1e-5, atol=1e-5)


def test_a_model_in_bfloat16_is_not_packed(model):
    model = model.to(torch.bfloat16)
    assert packed(model) is model


def test_weights_whose_changes_cannot_be_seen_are_not_packed():
    with torch.inference_mode():
        model = GPT(GPTConfig.tiny()).eval()
        copied = packed(model)
        copied(TOKENS)
        for part in ("blocks.0.attention.qkv", "blocks.0.attention.output", "blocks.0.mlp", "head"):
            ours, theirs = copied.get_submodule(part), model.get_submodule(part)
            x = torch.randn(5, 1, model.config.width)
            for weight in theirs.parameters():
                weight.mul_(2)
            assert ours(x).equal(theirs(x)), part


def test_gradients_reach_the_weights_that_the_copy_shares(model):
    tokens = torch.arange(8)[None]
    model.requires_grad_(True)
    packed(model)(tokens, tokens).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
