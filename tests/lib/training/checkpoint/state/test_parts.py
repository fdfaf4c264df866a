"""Parts with tensors in their states, parts that draw random numbers, and parts that are modules."""

import copy
from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
from threeloops.training.checkpoint import Checkpointer, LocalStore
from threeloops.training.checkpoint.manifest import decode
from threeloops.training.checkpoint.state import TrainingState
from threeloops.training.cluster import Cluster
from threeloops.training.data_parallel import DDP
from threeloops.training.sharded import FSDP
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Part:
    """Something with a `state_dict`, such as torchdata's StatefulDataLoader or another optimizer."""

    def __init__(self, state=None):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def saved(folder, step=1, **parts):
    state = TrainingState(nn.Linear(2, 2), **parts)
    Checkpointer(LocalStore(folder)).save(step, state.state())


def restored(folder, **parts):
    state = TrainingState(nn.Linear(2, 2), **parts)
    state.restore(Checkpointer(LocalStore(folder)).load(state.template))
    return state


class Drawing(Part):
    """Draws a seed when it is asked for its state, as data loaders do that have not begun."""

    def state_dict(self):
        if self.state is None:
            self.state = {"seed": int(torch.randint(1 << 40, ()))}
        return self.state


def test_random_states_are_captured_when_all_parts_have_given_theirs(tmp_path):
    saved(tmp_path, loader=Drawing())
    expected = torch.rand(3)
    restored(tmp_path, loader=Drawing())
    assert torch.equal(torch.rand(3), expected)


def test_tensors_anywhere_in_a_part_come_back_in_their_places(tmp_path):
    attributed = OrderedDict(a=torch.ones(1))
    attributed._metadata = {"version": 2}
    state = {
        "sampler": {"generator": torch.arange(5, dtype=torch.uint8), "yielded": 4},
        "workers": [{"rows": (torch.zeros(2, 0), None)}, torch.tensor(3.5)],
        0: {"exp_avg": torch.randn(3)}, "0": {"exp_avg": torch.randn(2)},
        "a.b": torch.ones(1), "a": {"b": torch.zeros(1)}, "module": attributed,
    }  # fmt: skip
    before = copy.deepcopy(state)
    saved(tmp_path, p=Part(state), alone=Part(torch.ones(2)))
    again, alone = Part(), Part()
    restored(tmp_path, p=again, alone=alone)
    for found in (again.state, state):  # what was saved is untouched
        assert repr(found) == repr(before) and found["module"]._metadata == {"version": 2}
    assert torch.equal(alone.state, torch.ones(2))


def test_what_was_loaded_stays_as_it_is_when_its_parts_are_restored(tmp_path):
    saved(tmp_path, p=Part({"rows": [torch.ones(2)], "steps": 4}))
    again = Part()
    state = TrainingState(nn.Linear(2, 2), p=again)
    loaded = Checkpointer(LocalStore(tmp_path)).load(state.template)
    before = repr(loaded.state)
    for _ in range(2):
        state.restore(loaded)
        assert repr(loaded.state) == before
        assert torch.equal(again.state["rows"][0], torch.ones(2))


def test_another_optimizer_is_a_part(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    saved(tmp_path, second=optimizer)
    again = torch.optim.AdamW(copy.deepcopy(model).parameters())
    restored(tmp_path, second=again)
    assert repr(again.state_dict()) == repr(optimizer.state_dict())


def test_a_dict_that_looks_like_the_mark_of_a_tensor_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"p\[0\].x is a dict whose one key is '!tensor'"):
        saved(tmp_path, p=Part({"x": {"!tensor": "y"}}))


def save_own(folder):
    rank = dist.get_rank()
    saved(folder, p=Part({"own": torch.full((rank + 1,), float(rank)), "rank": rank}))


def load_own(folder):
    part = Part()
    restored(folder, p=part)
    return part.state["rank"], part.state["own"].tolist()


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_each_rank_gets_the_tensors_that_it_saved_and_a_new_one_those_of_the_first(tmp_path, ranks):
    Cluster(3).run(save_own, tmp_path)
    expected = [(rank, [float(rank)] * (rank + 1)) for rank in (0, 1, 2, 0, 0)]
    assert Cluster(ranks).run(load_own, tmp_path).results == tuple(expected[:ranks])


# Modules


def averaged(seed, wrap=lambda model: model):
    torch.manual_seed(seed)
    model = wrap(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    return model, AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)


def save_average(folder, wrap):
    model, ema = averaged(0, wrap)
    for _ in range(3):
        model(torch.randn(4, 2))
        ema.update_parameters(model)
    state = TrainingState(model, ema=ema)
    Checkpointer(LocalStore(folder)).save(1, state.state())
    return [each.tolist() for each in ema.state_dict().values()]


def load_average(folder, wrap):
    model, ema = averaged(1, wrap)
    state = TrainingState(model, ema=ema)
    state.restore(Checkpointer(LocalStore(folder)).load(state.template))
    return [each.tolist() for each in ema.state_dict().values()]


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("after", [1, 3])
def test_an_average_of_the_model_is_saved_once_and_loaded_by_any_ranks(tmp_path, before, after):
    def wrap(model):
        return DDP(model) if dist.get_world_size() > 1 else model

    first, *_ = Cluster(before).run(save_average, tmp_path, wrap).results
    assert Cluster(after).run(load_average, tmp_path, wrap).results == (first,) * after
    names = decode((tmp_path / "step-00000001/manifest.json").read_bytes()).tensors
    assert {"ema.module.0.weight", "ema.module.1.running_mean", "ema.n_averaged"} <= names.keys()


def hidden_shards():
    model = nn.Sequential(FSDP(nn.Linear(2, 2), []))
    try:
        TrainingState(model).state()
    except ValueError as error:
        return str(error)


def test_shards_inside_of_a_module_are_refused_and_not_taken_for_replicas():
    for said in Cluster(2).run(hidden_shards).results:
        assert said.startswith("'0' is an FSDP inside of a Sequential, whose shards have no names there")
