"""Whole scripts, threads and errors."""

import datetime
import os
import runpy
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

from programs import program


def _total(x):
    x = torch.tensor([float(x)])
    dist.all_reduce(x)
    return x.item()


@program(ranks=2)
def init_and_destroy():
    """Make the process group from the environment, and destroy it at the end."""
    dist.init_process_group("gloo")
    total = _total(dist.get_rank() + 1)
    dist.destroy_process_group()
    return total, dist.is_initialized()


@program(ranks=2)
def rank_and_world_size_from_the_environment():
    """Pass RANK and WORLD_SIZE to init_process_group, with a timeout."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        backend="gloo", init_method="env://", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60)
    )
    try:
        return _total(rank), dist.get_world_size(), int(os.environ["LOCAL_RANK"])
    finally:
        dist.destroy_process_group()


@program(ranks=2)
def backend_by_device():
    """Make a group with a backend for each device, "cpu:gloo"."""
    dist.init_process_group("cpu:gloo")
    total = _total(1)
    dist.destroy_process_group()
    return total


@program(ranks=2)
def two_runs_after_each_other():
    """Destroy the process group and make another one."""
    totals = []
    for run in range(2):
        dist.init_process_group("gloo")
        totals.append(_total(run + dist.get_rank()))
        dist.barrier()
        dist.destroy_process_group()
    return totals


@program(ranks=2)
def only_if_it_is_distributed():
    """Make a process group only if WORLD_SIZE says that there is more than one rank."""
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed and not dist.is_initialized():
        dist.init_process_group("gloo")
    total = _total(2)
    if dist.is_initialized():
        dist.destroy_process_group()
    return total


@program(ranks=2)
def a_file_run_as_main():
    """Run a training script from its file, as torchrun does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(
            "import torch, torch.distributed as dist\n"
            "if __name__ == '__main__':\n"
            "    dist.init_process_group('gloo')\n"
            "    x = torch.ones(2) * dist.get_rank()\n"
            "    dist.all_reduce(x)\n"
            "    dist.destroy_process_group()\n"
        )
        return runpy.run_path(str(path), run_name="__main__")["x"].tolist()


@program(ranks=2)
def ddp_script():
    """Set up, train a DDP model, clean up."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(3, 1))
    ddp(torch.ones(2, 3) * (1 + dist.get_rank())).sum().backward()
    gradient = ddp.module.weight.grad.tolist()
    dist.destroy_process_group()
    return gradient


@program(ranks=2, refused="all calls of a rank come from the thread that runs its program", gloo_runs=True)
def two_threads():
    """Reduce from two threads, each in a group of its own."""
    groups = [dist.new_group(), dist.new_group()]
    totals = [[], []]

    def work(place):
        for step in range(5):
            x = torch.tensor([float(10 * place + step)])
            dist.all_reduce(x, group=groups[place])
            totals[place].append(x.item())

    other = threading.Thread(target=work, args=(1,))
    other.start()
    work(0)
    other.join()
    return totals


@program(ranks=2)
def a_thread_that_loads_data():
    """Load batches in a thread, and communicate only in the main thread."""
    batches = []
    loader = threading.Thread(target=lambda: batches.extend(torch.arange(4.0).split(2)))
    loader.start()
    loader.join()
    for batch in batches:
        dist.all_reduce(batch)
    return [batch.tolist() for batch in batches]


@record
def _recorded():
    dist.init_process_group("gloo")
    total = _total(dist.get_rank())
    dist.destroy_process_group()
    return total


@program(ranks=2)
def main_with_error_records():
    """Decorate main with record, which writes the error file of torchrun."""
    return _recorded()


@program(ranks=2)
def only_rank_0_prints_and_writes():
    """Log, write a file and time the run on rank 0 alone."""
    start = time.perf_counter()
    total = _total(3)
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "log.txt").write_text(f"{total}\n")
            print("total", total, "after", time.perf_counter() - start > 0)
    dist.barrier()
    return total


@program(ranks=2, refused="ZeroDivisionError")
def an_error_on_one_rank():
    """Raise an exception on one rank while the other waits for it."""
    if dist.get_rank() == 1:
        1 / 0  # noqa: B018
    dist.barrier()
