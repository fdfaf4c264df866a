"""A GPT in stages is the same GPT."""

import pytest
import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.pipeline import gpt_stages


def model(layers=3, **changes):
    torch.manual_seed(0)
    sizes = {"vocabulary_size": 17, "heads": 2, "kv_heads": 1, "width": 8, "mlp_width": 12, "max_sequence": 7}
    return GPT(GPTConfig(layers=layers, **{**sizes, **changes})).double()


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("tied", [True, False])
def test_one_after_the_other_they_compute_the_models_loss(stages, tied):
    whole = model(tied_embeddings=tied)
    tokens = torch.randint(17, (2, 7))
    parts = gpt_stages(whole, stages)
    x = tokens
    for part in parts:
        x = part(x)
    torch.testing.assert_close(parts[-1].loss(x, tokens), whole(tokens, tokens), rtol=0, atol=0)
    named = {name: p for part in parts for name, p in part.named_parameters()}
    assert named.keys() >= dict(whole.named_parameters()).keys() and all(
        named[name] is p for name, p in whole.named_parameters()
    )


@pytest.mark.parametrize(
    ("layers", "stages", "each"),
    [(6, 3, [2, 2, 2]), (7, 3, [2, 2, 3]), (2, 4, [0, 1, 0, 1]), (3, 1, [3]), (8, 3, [2, 3, 3])],
)
def test_layers_are_shared_out_evenly(layers, stages, each):
    assert [len(part.blocks) for part in gpt_stages(model(layers), stages)] == each


def test_parameters_have_the_models_names_in_the_stage_that_has_them():
    first, last = ({name for name, _ in part.named_parameters()} for part in gpt_stages(model(2), 2))
    assert first == {name for name in dict(model(2).named_parameters()) if name.startswith(("embedding.", "blocks.0."))}
    names = dict(model(2, tied_embeddings=False).named_parameters())
    assert last == {name for name in names if name.startswith(("norm.", "head.", "blocks.1."))}


def test_only_a_tied_weight_that_is_in_two_stages_is_announced():
    tied = gpt_stages(model(), 3)
    assert [part.tied_weight is not None for part in tied] == [True, False, True]
    assert tied[0].tied_weight is tied[2].tied_weight
    assert "tied_weight" not in dict(tied[0].named_parameters())
    assert [part.tied_weight for part in gpt_stages(model(tied_embeddings=False), 3)] == [None] * 3
    assert gpt_stages(model(), 1)[0].tied_weight is None


def test_there_is_at_least_one_stage():
    with pytest.raises(ValueError, match="stages = 0"):
        gpt_stages(model(), 0)
