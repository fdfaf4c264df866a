"""Plans: what they match, and how each that does not fit is named. One rank is enough where nothing is cut."""

import pytest
import torch
from threeloops.training.cluster import Cluster, RankFailed
from threeloops.training.tensor_parallel import (
    COPIED,
    Column,
    ColumnParallelLinear,
    Enter,
    Row,
    RowParallelLinear,
    Vocabulary,
    gpt_plan,
    parallelize,
)
from torch import nn


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)


def model():
    torch.manual_seed(0)
    return nn.ModuleDict({"blocks": nn.ModuleList(TwoLayers() for _ in range(2)), "norm": nn.LayerNorm(4)})


def applied(plan, make=model, ranks=2):
    def program():
        module = make()
        names = parallelize(module, plan)
        return names, {name: type(each).__name__ for name, each in module.named_modules()}

    return Cluster(ranks).run(program).results[0]


def test_a_star_stands_for_any_one_step():
    names, types = applied({"blocks.*.up": Column(), "blocks.1.down": Row()})
    assert names == {"blocks.0.up.weight", "blocks.0.up.bias", "blocks.1.up.weight", "blocks.1.up.bias"} | {
        "blocks.1.down.weight"
    }
    assert types["blocks.0.up"] == types["blocks.1.up"] == ColumnParallelLinear.__name__
    assert types["blocks.1.down"] == RowParallelLinear.__name__ and types["blocks.0.down"] == "Linear"


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"*.up": Column()}, "the plan's '.*up' matches no module: there are blocks, blocks.0, blocks.0.up"),
        ({"blocks.0.up.weight": Column()}, "the plan's 'blocks.0.up.weight' matches no module"),
        ({"blocks.*.up": Column(), "blocks.0.*": Row()}, r"blocks.0.up: both 'blocks.\*.up' and 'blocks.0.\*' match"),
        ({"blocks.0": Column()}, "blocks.0: TwoLayers: this style cuts Linear"),
        ({"norm": Row()}, "norm: LayerNorm: this style cuts Linear"),
        ({"blocks.0.up": Vocabulary()}, "blocks.0.up: Linear: this style cuts Embedding"),
        ({"": Column()}, "would replace the module itself"),
        ({"blocks.0.up": Column(COPIED)}, "blocks.0.up: 'blocks.0.up' expects a copied input, and no module around it"),
        ({"blocks.1": Enter(), "blocks.0.up": Column(COPIED)}, "blocks.0.up: .* expects a copied input"),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_fit_is_named(plan, message):
    with pytest.raises(RankFailed, match=message):
        applied(plan, ranks=1)


def test_the_plan_of_a_gpt_is_for_a_gpt():
    with pytest.raises(RankFailed, match="matches no module"):
        applied(gpt_plan(), ranks=1)
    with pytest.raises(RankFailed, match="the module itself: ModuleDict: this style cuts GPT"):
        applied({"": gpt_plan()[""]}, ranks=1)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize("plan", [{"head": Column()}, {"embedding": Vocabulary(), "head": Row()}])
def test_tied_parameters_must_be_cut_alike(plan):
    with pytest.raises(RankFailed, match=r"embedding.weight and head.weight are tied, and the plan cuts them into"):
        applied(plan, Tied)


def test_what_is_cut_already_is_not_cut_again_and_another_part_of_the_module_can_be():
    def program():
        module = model()
        parallelize(module, {"blocks.0.up": Column()}, torch.distributed.new_group([0]))
        parallelize(module, {"blocks.1.up": Column()}, torch.distributed.new_group([0]))
        parallelize(module, {"blocks.0.up": Column()})

    with pytest.raises(RankFailed, match="blocks.0.up: ColumnParallelLinear: this style cuts Linear"):
        Cluster(1).run(program)
