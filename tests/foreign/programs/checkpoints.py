"""Checkpoints of many ranks."""

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from programs import program


def _model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def _sharded():
    model = _model()
    fully_shard(model[0])
    return fully_shard(model)


def _step(model, optimizer):
    model(torch.ones(2, 4) * (1 + dist.get_rank())).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def _flat(state):
    whole = {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in state.items()}
    return {name: value.detach().clone() for name, value in whole.items()}


@contextmanager
def _folder():
    """A folder that all ranks share, until all are done with it."""
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(names)
    yield Path(names[0])
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(names[0])


class _Training(Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = dcp_state.get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        dcp_state.set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


@program(ranks=2)
def checkpoint_of_replicated_weights():
    """Save and load the state of a DDP model with torch.distributed.checkpoint."""
    ddp = DistributedDataParallel(_model())
    with _folder() as folder:
        dcp.save({"model": ddp.state_dict(), "step": 5}, checkpoint_id=folder / "one")
        state = {"model": {name: torch.zeros_like(value) for name, value in ddp.state_dict().items()}, "step": 0}
        dcp.load(state, checkpoint_id=folder / "one")
    return state["step"], _flat(state["model"])


@program(ranks=2)
def checkpoint_of_sharded_training():
    """Save and restore a sharded model and its optimizer as one Stateful object."""
    model = _sharded()
    training = _Training(model, torch.optim.Adam(model.parameters(), lr=0.1))
    _step(model, training.optimizer)
    with _folder() as folder:
        dcp.save({"training": training}, checkpoint_id=folder / "one")
        _step(model, training.optimizer)
        dcp.load({"training": training}, checkpoint_id=folder / "one")
    _step(model, training.optimizer)
    return _flat(model.state_dict())


@program(ranks=2)
def asynchronous_checkpoint():
    """Save in the background with async_save while training goes on."""
    model = _sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with _folder() as folder:
        saving = dcp.async_save(
            {"model": model.state_dict()}, checkpoint_id=folder / "one", process_group=dist.new_group(backend="gloo")
        )
        _step(model, optimizer)
        saving.result()
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=folder / "one")
        return _flat(state["model"])


@program(ranks=2)
def full_state_on_rank_0():
    """Collect the whole state of a sharded model on rank 0, with full_state_dict and cpu_offload."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return _flat(dcp_state.get_model_state_dict(_sharded(), options=options))


@program(ranks=2)
def state_from_rank_0():
    """Load a whole state that only rank 0 has, with broadcast_from_rank0."""
    whole = {name: value + 1 for name, value in _model().state_dict().items()} if dist.get_rank() == 0 else {}
    model = _sharded()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    dcp_state.set_model_state_dict(model, whole, options=options)
    return [parameter.to_local().tolist() for parameter in model.parameters()]


@program(ranks=2)
def optimizer_state_in_full():
    """Collect the optimizer's state of a sharded model, and load it again."""
    model = _sharded()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    _step(model, optimizer)
    options = StateDictOptions(full_state_dict=True)
    state = dcp_state.get_optimizer_state_dict(model, optimizer, options=options)
    averages = {name: value["exp_avg"].clone() for name, value in state["state"].items()}
    dcp_state.set_optimizer_state_dict(model, optimizer, state, options=options)
    _step(model, optimizer)
    return averages, _flat(model.state_dict())


@program(ranks=2)
def another_number_of_shards():
    """Save tensors sharded by rows, and load them sharded by columns."""
    mesh = init_device_mesh("cpu", (2,))
    x = torch.arange(16.0).reshape(4, 4)
    with _folder() as folder:
        dcp.save({"x": distribute_tensor(x, mesh, [Shard(0)])}, checkpoint_id=folder / "one")
        state = {"x": distribute_tensor(torch.zeros(4, 4), mesh, [Shard(1)])}
        dcp.load(state, checkpoint_id=folder / "one")
    return state["x"].to_local().tolist()


@program(ranks=2)
def consolidated_checkpoint():
    """Convert a sharded checkpoint to one file for torch.load, and back."""
    model = _sharded()
    with _folder() as folder:
        dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "sharded")
        if dist.get_rank() == 0:
            dcp_to_torch_save(folder / "sharded", folder / "whole.pt")
            torch_save_to_dcp(folder / "whole.pt", folder / "again")
        dist.barrier()
        return _flat(torch.load(folder / "whole.pt", weights_only=True)["model"])


@program(ranks=2)
def a_file_for_each_rank():
    """Save one safetensors file for each rank, and merge them on rank 0."""
    rank = dist.get_rank()
    shard = torch.arange(6.0).reshape(2, 3) + 10 * rank
    with _folder() as folder:
        save_file({"weight": shard}, folder / f"{rank}.safetensors")
        dist.barrier()
        merged = torch.cat([load_file(folder / f"{other}.safetensors")["weight"] for other in range(2)])
    return merged.tolist()


@program(ranks=2)
def latest_checkpoint_that_all_ranks_have():
    """Agree on the newest step that every rank has on its disk, with MIN."""
    newest = torch.tensor(100 - 20 * dist.get_rank())
    dist.all_reduce(newest, op=dist.ReduceOp.MIN)
    return int(newest)
