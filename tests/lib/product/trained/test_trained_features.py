"""The extra layer that guesses for a trained model: how it is trained, and the one that comes with the library."""

import pytest
import torch
from safetensors import safe_open
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.decode import FeatureHead
from threeloops.product.trained import feature_head, standard_library, trained

TEXT = torch.arange(4000, dtype=torch.uint8) % 7


def a_model():
    torch.manual_seed(2)
    model = GPT(GPTConfig(7, layers=1, heads=2, kv_heads=1, width=16, mlp_width=16, max_sequence=64))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.5)
    return model.requires_grad_(False)


def test_training_is_repeatable_and_teaches_the_layer():
    model, tokens = a_model(), TEXT[:128].view(2, 64).long()
    first, again = (feature_head._train(model, TEXT, 40, batch=4, sequence=32) for _ in range(2))
    for one, other in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other) and not one.requires_grad
    torch.manual_seed(0)
    untrained = FeatureHead(model.config)
    for depth in (1, 2):
        assert first.acceptance(model, tokens, depth) > untrained.acceptance(model, tokens, depth) + 0.1


def test_the_layer_that_comes_with_the_library_is_as_good_as_it_says():
    with safe_open(feature_head._SHIPPED, "pt") as file:
        stated = float(file.metadata()["acceptance"])
    tokens = standard_library()[1][: 16 * 128].view(16, 128).long()
    layer = feature_head.trained_feature_head()
    assert layer.acceptance(trained("tiny"), tokens) == pytest.approx(stated, abs=0.04)
