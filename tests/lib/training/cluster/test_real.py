"""The same programs on real processes."""

import os
import subprocess
import sys
import weakref

import psutil
import pytest
import torch
import torch.distributed as dist
from threeloops.training.cluster import Cluster, RankFailed, advance_to, compute, now
from threeloops.training.cluster.real import leave_process_groups, main, run_on_processes


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


def surroundings():
    print("of rank", dist.get_rank(), flush=dist.get_rank() == 0)
    print("a warning", file=sys.stderr)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return os.getpid(), os.environ.get("OF_MY_OWN"), os.getcwd(), os.environ["RANK"], cores


def test_ranks_have_the_surroundings_of_who_starts_them(monkeypatch, tmp_path, capfd):
    """Also where the process that they are forked from was started before."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    for own in ("one", "two"):
        (tmp_path / own).mkdir()
        monkeypatch.chdir(tmp_path / own)
        monkeypatch.setenv("OF_MY_OWN", own)
        found = run_on_processes("gloo", 2, surroundings)
        assert [each[1:] for each in found] == [(own, str(tmp_path / own), str(rank), cores) for rank in range(2)]
        assert not any(psutil.pid_exists(pid) for pid, *_ in found)
        said = capfd.readouterr()
        assert sorted(said.out.splitlines()) == ["of rank 0", "of rank 1"] and said.err.count("a warning") == 2
    assert "OF_MY_OWN" not in Cluster(1).run(lambda: dict(os.environ)).results[0], "a rank's are its own"


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
        (
            hangs,
            4,
            r"rank 0 was at work when the 4 s for this run were over, in hangs \(test_real.py:\d+\): does it hang",
        ),
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it would not fail")
def test_a_rank_on_nccl_is_a_process_of_its_own_and_says_what_is_wrong(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RankFailed, match=r"(?s)rank 0 failed:.*torch\.cuda\.set_device\(rank\)"):
        run_on_processes("nccl", 1, program, 10)


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: program"),
        (["mine:total"], "RANK is not set: start this with torchrun, or with srun"),
    ],
)
def test_without_a_launcher_or_a_program_it_says_what_is_missing(arguments, message, monkeypatch, capsys):
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["cluster", *arguments])
    threads = torch.get_num_threads()
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        torch.set_num_threads(threads)
    assert end.value.code == 2 and message in capsys.readouterr().err


class Model:
    """Refers to its group and to itself, as a module with hooks does."""

    def __init__(self):
        self.group, self.itself = dist.group.WORLD, self


def test_leaving_the_process_groups_frees_what_refers_to_them():
    """A group that is freed only as Python ends may keep the process from ending, from Python 3.14 on."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = weakref.ref(Model())
    assert model() is not None
    leave_process_groups()
    assert model() is None and not dist.is_initialized()
