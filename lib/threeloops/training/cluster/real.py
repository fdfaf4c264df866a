"""Run the same program on real processes: gloo on any machine, NCCL if each rank has a GPU.

`run_on_processes("gloo", 4, program)` starts ranks on this machine. Under a launcher that starts them itself, on one
machine or many, name the program as `module:function`:

    torchrun --nproc-per-node 8 -m threeloops.training.cluster my_module:program

and under Slurm, with the script `slurm.sh` beside this module:

    sbatch --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 slurm.sh my_module:program
"""

import argparse
import contextlib
import faulthandler
import functools
import gc
import importlib
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from threeloops.module_process import command
from threeloops.training.cluster.machine.errors import RankFailed
from threeloops.training.cluster.processes.launcher import launcher
from threeloops.training.cluster.processes.pickled import from_bytes, to_bytes
from threeloops.training.cluster.programs.actor import line_in_stack
from threeloops.training.cluster.programs.world import enter_world, environment

__all__ = ["leave_process_groups", "main", "run_on_processes"]

_MODULE = "threeloops.training.cluster.real"
_FOLDER = "THREELOOPS_RANK_FOLDER"
_GRACE_SECONDS = 5.0
"""The time that the other ranks have to say why they failed, once one has failed."""


def run_on_processes(
    backend: str, ranks: int, program: Callable[..., Any], *arguments: Any, seconds: float = 300.0
) -> list[Any]:
    """Run `program(*arguments)` on `ranks` processes of this machine, connected by torch's `backend`, gloo or nccl.

    Returns its result on each rank. `compute` sleeps, and `now` is the machine's clock. Ranks on gloo are forks of the
    process that virtual clusters keep warm, so runs of one process wait for each other. `seconds` count from the moment
    when all ranks have started.

    Raises:
        ValueError: this machine lacks the backend, or has fewer GPUs than ranks for NCCL.
        RankFailed: a rank failed, with its traceback, or the time was over. All processes are gone then.
    """
    if backend not in ("gloo", "nccl"):
        raise ValueError(f"backend = {backend!r}: expected gloo or nccl")
    if backend == "nccl" and torch.cuda.device_count() < ranks:
        raise ValueError(f"nccl needs a GPU for each of {ranks} ranks, and {torch.cuda.device_count()} are visible")
    if ranks < 1:
        raise ValueError(f"ranks = {ranks}: expected 1 or more")
    with tempfile.TemporaryDirectory(prefix="threeloops-ranks-") as folder:
        pickled = to_bytes(program, arguments)
        (Path(folder) / "program").write_bytes(pickled)
        start = functools.partial(_forks, program=pickled) if backend == "gloo" else _processes
        with start(ranks, folder, seconds) as statuses:
            failed = _wait(statuses, time.monotonic() + seconds)
            if failed is not None:
                raise RankFailed(_why(Path(folder), failed, statuses()[failed], seconds))
        return [cloudpickle.loads((Path(folder) / f"result {rank}").read_bytes()) for rank in range(ranks)]


_Statuses = Callable[[], list[int | None]]
"""Tells the exit status of each rank, None for one that is at work."""


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def _forks(ranks: int, folder: str, seconds: float, program: bytes) -> contextlib.AbstractContextManager[_Statuses]:
    """Ranks on gloo start in milliseconds, as forks of the process that has imported torch for virtual clusters."""
    forks: contextlib.AbstractContextManager[_Statuses] = launcher.processes(
        ranks, functools.partial(_fork, folder, ranks, seconds), _environment(), program
    )
    return forks


def _fork(folder: str, ranks: int, seconds: float, rank: int) -> None:
    os.environ.update(environment(rank, (0,) * ranks))
    _run_in_folder(Path(folder), "gloo", rank, ranks, seconds)


@contextlib.contextmanager
def _processes(ranks: int, folder: str, seconds: float) -> Iterator[_Statuses]:
    """Ranks on NCCL are processes of their own: CUDA has to be out of sight in one that will be forked."""
    processes = [
        subprocess.Popen(
            command(_MODULE),
            env=_environment() | environment(rank, (0,) * ranks) | {_FOLDER: f"{seconds} {folder}"},
            stdin=subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]
    try:
        yield lambda: [process.poll() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _wait(statuses: _Statuses, deadline: float) -> int | None:
    """Wait until all are done, and return the rank that failed first or did not end."""
    failed = None
    while None in (now := statuses()):
        bad = [rank for rank, status in enumerate(now) if status]
        if bad and failed is None:
            failed = bad[0]
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        if time.monotonic() > deadline:
            return failed if failed is not None else now.index(None)
        time.sleep(0.01)
    return next((rank for rank, status in enumerate(now) if status), failed)


def _why(folder: Path, failed: int, status: int | None, seconds: float) -> str:
    """The first traceback that a rank left behind, by time; without one how rank `failed` ended."""
    errors = sorted(folder.glob("error *"), key=lambda path: path.stat().st_mtime_ns)
    if errors:
        return f"rank {errors[0].name.removeprefix('error ')} failed:\n{errors[0].read_text()}"
    if status is None:
        stacks = {int(path.name.removeprefix("stack ")): path.read_text() for path in folder.glob("stack *")}
        at_work = min((rank for rank, stack in stacks.items() if stack), default=failed)
        return (
            f"rank {at_work} was at work when the {seconds:g} s for this run were over"
            f"{line_in_stack(stacks.get(at_work, ''))}: does it hang, or need more seconds?"
        )
    return f"rank {failed} ended with exit status {status} and without a word"


def main() -> None:
    """Run one rank. Its number, the number of ranks and their meeting point are in the environment, as torchrun or
    Slurm sets it."""
    torch.set_num_threads(1)
    if folder := os.environ.pop(_FOLDER, ""):
        seconds, _, folder = folder.partition(" ")
        _run_in_folder(Path(folder), "nccl", int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), float(seconds))
        return
    parser = argparse.ArgumentParser(
        prog="python -m threeloops.training.cluster", description="run one rank of a program"
    )
    parser.add_argument("program", help="module:function")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="nccl" if torch.cuda.is_available() else "gloo")
    options = parser.parse_args()
    for name, slurm in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS"), ("LOCAL_RANK", "SLURM_LOCALID")):
        if name not in os.environ and slurm not in os.environ:
            parser.error(f"{name} is not set: start this with torchrun, or with srun")
        os.environ.setdefault(name, os.environ.get(slurm, ""))
    if options.backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    module, _, name = options.program.partition(":")
    sys.path.insert(0, os.getcwd())
    program = getattr(importlib.import_module(module), name or "main")
    dist.init_process_group(options.backend)
    try:
        result = program()
        if dist.get_rank() == 0 and result is not None:
            print(result)
    finally:
        leave_process_groups()


def leave_process_groups() -> None:
    """End all process groups, and free the objects that still refer to one.

    A group that lives until Python ends may keep the process from ending, from Python 3.14 on: freeing it waits for its
    thread, and that thread waits for an interpreter that is gone.
    """
    dist.destroy_process_group()
    gc.collect()


def _run_in_folder(folder: Path, backend: str, rank: int, world: int, seconds: float) -> None:
    stack = (folder / f"stack {rank}").open("w")
    try:
        if backend == "nccl":
            torch.cuda.set_device(rank)
        program, arguments = from_bytes((folder / "program").read_bytes())
        faulthandler.dump_traceback_later(0.9 * seconds, file=stack)
        enter_world(rank, world, backend, lambda number: dist.FileStore(str(folder / f"store {number}"), world))
        # A model that outlives its group must not be the last to free it: torch joins gloo's threads with the GIL held.
        group = dist.group.WORLD
        result = cloudpickle.dumps(program(*arguments))
        faulthandler.cancel_dump_traceback_later()
        if dist.is_initialized():  # the program may have ended its groups
            dist.barrier()
            leave_process_groups()
        del group
        (folder / f"result {rank}").write_bytes(result)
    except BaseException:
        (folder / f"error {rank}").write_text(traceback.format_exc())
        os._exit(1)
