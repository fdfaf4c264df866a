"""Programs in the shapes of public code give the same values on the virtual cluster as on gloo."""

import gc
import os
import socket
import tempfile

import pytest
import torch
import torch.distributed as dist
from programs import every_program
from threeloops.training.cluster import run_on_processes

PROGRAMS = every_program()


def same(ours, theirs, **tolerance):
    """Whether two nested values are equal: to the bit, or within a tolerance."""
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key], **tolerance) for key in ours)
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(same(*pair, **tolerance) for pair in zip(ours, theirs, strict=True))
    if isinstance(ours, float) and tolerance:
        return ours == pytest.approx(theirs, rel=tolerance["rtol"], abs=tolerance["atol"])
    if isinstance(ours, torch.Tensor):
        if tolerance:
            return ours.shape == theirs.shape and torch.allclose(ours, theirs, **tolerance)
        return ours.equal(theirs)
    return ours == theirs


def as_a_script(function):
    """Run a function without a process group, in the environment that torchrun makes, and restore the group."""
    port = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port[0] = free.getsockname()[1]
    dist.broadcast(port, src=0)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    rank, world = dist.get_rank(), dist.get_world_size()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(int(port)))
    dist.destroy_process_group()
    result = function()
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
    dist.init_process_group("gloo", init_method=f"file://{folder[0]}/store", rank=rank, world_size=world)
    return result


def on_gloo(program, seconds=60.0):
    arguments = (as_a_script, program.function) if program.script else (program.function,)
    return run_on_processes("gloo", program.ranks, *arguments, seconds=seconds)
