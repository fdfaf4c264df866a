"""What we export torch.distributed.checkpoint loads, and what it saved we read: on one rank and on several."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from threeloops.training.checkpoint import Checkpointer, CheckpointError, LocalStore, Sharded
from threeloops.training.checkpoint.dcp import export_dcp, read_dcp
from threeloops.training.cluster import run_on_processes

STATE = {
    "model.w": torch.randn(5, 3, generator=torch.Generator().manual_seed(0)),
    "model.half": torch.randn(7).bfloat16(),
    "optimizer.w.step": torch.tensor(3.0),
    "counts": torch.arange(4),
    "epoch": 3,
}


def saved(tmp_path):
    checkpointer = Checkpointer(LocalStore(tmp_path / "ours"))
    checkpointer.save(1, STATE)
    return checkpointer


def test_torch_loads_what_we_export(tmp_path):
    export_dcp(saved(tmp_path).load(), tmp_path / "theirs")
    into = {name: torch.zeros_like(each) for name, each in STATE.items() if isinstance(each, torch.Tensor)} | {
        "epoch": 0
    }
    dcp.load(into, storage_reader=dcp.FileSystemReader(tmp_path / "theirs"), no_dist=True)
    assert into["epoch"] == 3
    for name, each in into.items():
        assert name == "epoch" or (each.dtype == STATE[name].dtype and torch.equal(each, STATE[name])), name


def test_we_read_what_torch_saved_and_what_we_exported(tmp_path):
    nested = {"model": {"w": STATE["model.w"], "half": STATE["model.half"]}, "epoch": 3}
    dcp.save(nested, storage_writer=dcp.FileSystemWriter(tmp_path / "nested"), no_dist=True)
    found = read_dcp(tmp_path / "nested")
    assert found.keys() == {"model.w", "model.half", "epoch"} and found["epoch"] == 3
    assert all(torch.equal(found[name], STATE[name]) for name in ("model.w", "model.half"))
    export_dcp(saved(tmp_path).load(), tmp_path / "exported")
    again = read_dcp(tmp_path / "exported")
    assert again.keys() == STATE.keys()
    assert all(torch.equal(again[name], each) for name, each in STATE.items() if name != "epoch")


def test_a_round_trip_through_torch_and_back_is_the_same_checkpoint(tmp_path):
    export_dcp(saved(tmp_path).load(), tmp_path / "theirs")
    checkpointer = Checkpointer(LocalStore(tmp_path / "back"))
    checkpointer.save(1, read_dcp(tmp_path / "theirs"))
    before, after = (tmp_path / place / "step-00000001/rank-00000.safetensors" for place in ("ours", "back"))
    assert before.read_bytes() == after.read_bytes()


def shard_and_save(folder):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    whole = torch.arange(35.0).view(7, 5)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    dcp.save({"w": distribute_tensor(whole, mesh, [Shard(0)])}, storage_writer=dcp.FileSystemWriter(folder))


@pytest.mark.slow  # the first DTensor of a process takes seconds
def test_we_read_what_several_ranks_of_torch_saved(tmp_path):
    run_on_processes("gloo", 2, shard_and_save, tmp_path)
    assert torch.equal(read_dcp(tmp_path)["w"], torch.arange(35.0).view(7, 5))


def test_an_export_is_whole_and_mixes_with_nothing(tmp_path):
    checkpointer = saved(tmp_path)
    part = Sharded((5, 3), torch.float32, (((0, 0), torch.zeros(1, 3)),))
    with pytest.raises(ValueError, match="'model.w' is not complete here"):
        export_dcp(checkpointer.load({"model.w": part}, strict=False), tmp_path / "theirs")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "x").touch()
    with pytest.raises(CheckpointError, match="is not empty"):
        export_dcp(checkpointer.load(), tmp_path / "theirs")
