"""A run that torch.distributed.checkpoint saved goes on in a TrainingState, bit for bit, however it was nested."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from threeloops.training.checkpoint import Checkpointer, LocalStore
from threeloops.training.checkpoint.dcp import training_from_dcp
from threeloops.training.checkpoint.state import TrainingState
from threeloops.training.cluster import Cluster
from threeloops.training.sharded import ZeroOptimizer
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Tied(nn.Module):
    """A model with buffers, a frozen parameter, and one that has two names."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, rows):
        return self.last(self.norm(self.first(rows))) * self.frozen


def run(seed, model=None):
    torch.manual_seed(seed)
    model = model or Tied()
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    vectors = [p for p in model.parameters() if p.requires_grad and p.dim() == 1]
    groups = [{"params": vectors, "weight_decay": 0.0}, {"params": matrices, "lr": 0.1}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.9))
    return model, optimizer


def train(model, optimizer, steps=3):
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(7))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(rows) - rows.roll(1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def plain(model, optimizer):
    return {"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": 3}, {}


def by_name(model, optimizer):
    weights, states = get_state_dict(model, optimizer)
    return {"app": {"model": weights, "optim": states}}, {"model": "app.model", "optimizer": "app.optim"}


def flattened(model, optimizer):
    weights, states = get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    return {**weights, "optimizer": states, "train_state": torch.zeros(1)}, {"model": "", "optimizer": "optimizer"}


def compiled(model, optimizer):
    return {"model": {f"_orig_mod.{n}": v for n, v in model.state_dict().items()}, "optim": optimizer.state_dict()}, {}


def compiled_ddp(model, optimizer):
    weights = {f"_orig_mod.module.{name}": value for name, value in model.state_dict().items()}
    return {"model": weights, "optim": optimizer.state_dict()}, {}


def written(folder, form, model, optimizer):
    state, places = form(model, optimizer)
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    return places


@pytest.mark.parametrize("form", [plain, by_name, flattened, compiled, compiled_ddp])
def test_the_run_goes_on_bit_for_bit(tmp_path, form):
    model, optimizer = run(0)
    train(model, optimizer)
    places = written(tmp_path / "theirs", form, model, optimizer)
    expected = train(model, optimizer)
    again = TrainingState(*run(1))
    checkpointer = Checkpointer(LocalStore(tmp_path / "ours"))
    checkpointer.save(3, training_from_dcp(tmp_path / "theirs", again, **places))
    again.restore(checkpointer.load(again.template))
    assert again.optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert [group["lr"] for group in again.optimizer.param_groups] == [0.01, 0.1]
    assert train(again.model, again.optimizer) == expected


def shapes_of_each(folder):
    model = nn.Linear(3, 5)
    state = TrainingState(model, ZeroOptimizer(model, torch.optim.AdamW, stage=1))
    state.restore(Checkpointer(LocalStore(folder)).load(state.template))
    return [each.tolist() for each in model.parameters()]


def test_ranks_that_shard_the_optimizer_load_what_one_process_converted(tmp_path):
    model = nn.Linear(3, 5)
    optimizer = torch.optim.AdamW(model.parameters())
    train(nn.Sequential(model, nn.Linear(5, 3)), optimizer)
    written(tmp_path / "theirs", plain, model, optimizer)
    converted = training_from_dcp(tmp_path / "theirs", TrainingState(model, torch.optim.AdamW(model.parameters())))
    Checkpointer(LocalStore(tmp_path / "ours")).save(1, converted)
    assert Cluster(2).run(shapes_of_each, tmp_path / "ours").results == ([p.tolist() for p in model.parameters()],) * 2


def test_a_state_without_an_optimizer_takes_the_model_alone(tmp_path):
    model, optimizer = run(0)
    written(tmp_path / "theirs", plain, model, optimizer)
    found = training_from_dcp(tmp_path / "theirs", TrainingState(Tied()))
    assert found.keys() == {f"model.{name}" for name in model.state_dict()}


def test_a_model_may_have_the_names_that_wrappers_give(tmp_path):
    model = nn.ModuleDict({"module": nn.Linear(2, 2)})
    written(tmp_path, plain, model, torch.optim.SGD(model.parameters()))
    assert training_from_dcp(tmp_path, TrainingState(model)).keys() == {"model.module.weight", "model.module.bias"}


def other_groups(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize(
    ("made", "places", "says"),
    [
        (lambda: run(0), {"model": "net"}, "nothing at 'net': expected one of 'epoch', 'model', 'optim'"),
        (lambda: run(0), {"optimizer": "adam"}, "nothing at 'adam'"),
        (lambda: run(0), {"optimizer": "model"}, "no options of group 0: is the optimizer's place right"),
        (lambda: (nn.Linear(3, 3), None), {"model": "optim.param_groups"}, "'bias' and .* in the model only"),
        (lambda: (nn.Linear(3, 3), None), {}, "'bias' and .* in the model only"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, made, places, says):
    written(tmp_path, plain, *run(0))
    with pytest.raises(ValueError, match=says):
        training_from_dcp(tmp_path, TrainingState(*made()), **places)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (plain, r"group 0 has \[.*\]: expected \[.*'first.weight'"),
        (by_name, r"group 0 has \[.*\]: expected \[.*'first.weight'"),
        (
            flattened,
            r"group 0: 'first.weight' was saved with lr = 0.1 and 'first.bias' with lr = 0.01: expected the same",
        ),
    ],
)
def test_parameters_of_other_groups_are_refused(tmp_path, form, says):
    places, model = written(tmp_path, form, *run(0)), Tied()
    with pytest.raises(ValueError, match=says):
        training_from_dcp(tmp_path, TrainingState(model, other_groups(model)), **places)


def test_flattened_groups_of_the_same_options_may_be_joined(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW([{"params": [each]} for each in model.parameters()], lr=0.3)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    places = written(tmp_path, flattened, model, optimizer)
    found = training_from_dcp(tmp_path, TrainingState(model, torch.optim.AdamW(model.parameters())), **places)
    assert [group["lr"] for group in found["optimizer groups"]] == [0.3]
