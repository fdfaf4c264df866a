"""The same programs on real processes."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from threeloops.training.cluster import Cluster, RankFailed, advance_to, compute, now
from threeloops.training.cluster.real import run_on_processes


def program(count):
    advance_to(1e-3)
    start = now()
    x = torch.arange(count, dtype=torch.float32) * (dist.get_rank() + 1)
    compute(1e-3)
    handle = dist.all_reduce(x, async_op=True)
    handle.wait()
    into = torch.empty(3)
    other = 1 - dist.get_rank()
    sent = dist.isend(x[:3].clone(), other)
    dist.recv(into, other)
    sent.wait()
    return x, into, now() - start


def test_a_program_gives_the_same_values_on_gloo_as_on_the_virtual_cluster():
    virtual = Cluster(2).run(program, 10).results
    real = run_on_processes("gloo", 2, program, 10)
    for (x, into, _), (y, other, seconds) in zip(virtual, real, strict=True):
        assert x.equal(y) and into.equal(other) and seconds >= 1e-3


def fails():
    if dist.get_rank() == 1:
        raise KeyError("no such layer")
    dist.barrier()


def exits():
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()


def hangs():
    while True:
        pass


@pytest.mark.parametrize(
    ("body", "seconds", "message"),
    [
        (fails, 60, "(?s)rank 1 failed:.*no such layer"),
        (exits, 60, "rank (0 failed|1 ended with exit status 3 and without a word)"),
        (hangs, 3, "rank 0 was at work when the 3 s for this run were over: does it hang?"),
    ],
)
def test_a_rank_that_fails_ends_all(body, seconds, message):
    with pytest.raises(RankFailed, match=message):
        run_on_processes("gloo", 2, body, seconds=seconds)


@pytest.mark.parametrize(("backend", "ranks", "what"), [("mpi", 2, "gloo or nccl"), ("gloo", 0, "ranks = 0")])
def test_what_cannot_be_run_is_refused(backend, ranks, what):
    with pytest.raises(ValueError, match=what):
        run_on_processes(backend, ranks, program)


@pytest.mark.skipif(torch.cuda.device_count() >= 2, reason="enough GPUs")
def test_nccl_needs_a_gpu_for_each_rank():
    with pytest.raises(ValueError, match="nccl needs a GPU for each of 2 ranks"):
        run_on_processes("nccl", 2, program)


def run_module(*arguments, folder):
    """Without the variables that a launcher sets."""
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "SLURM_PROCID")}
    return subprocess.run(
        [sys.executable, "-m", "threeloops.training.cluster", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=120, env=clean,
    )  # fmt: skip


def test_torchrun_runs_a_named_program_unchanged(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch, torch.distributed as dist\n"
        "def total():\n    x = torch.ones(2) * (1 + dist.get_rank())\n    dist.all_reduce(x)\n    return x.tolist()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "-m", "threeloops.training.cluster", "mine:total", "--backend", "gloo"],
        cwd=tmp_path, capture_output=True, text=True, timeout=180,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[3.0, 3.0]"


def test_without_a_launcher_or_a_program_it_says_what_is_missing(tmp_path):
    done = run_module(folder=tmp_path)
    assert done.returncode == 2 and "the following arguments are required: program" in done.stderr
    done = run_module("mine:total", folder=tmp_path)
    assert done.returncode == 2 and "RANK is not set: start this with torchrun, or with srun" in done.stderr
