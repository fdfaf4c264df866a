"""The script for sbatch, on a Slurm of one host: munged, slurmctld and slurmd are started for it, and real."""

import os
import subprocess
import sys
from importlib.resources import files

from slurm import one_host_slurm

SCRIPT = str(files("threeloops.training.cluster") / "slurm.sh")


def submit(environment, folder, program, ranks):
    """Wait for the job; its exit status and all that it printed."""
    done = subprocess.run(
        ["sbatch", "--wait", "--ntasks", str(ranks), "--output", "out", SCRIPT, program, "--backend", "gloo"],
        cwd=folder, capture_output=True, text=True, timeout=180, env=environment,
    )  # fmt: skip
    return done.returncode, (folder / "out").read_text()


def test_sbatch_runs_programs_on_all_ranks_and_a_rank_that_fails_ends_the_job(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch, torch.distributed as dist\n"
        "def total():\n    x = torch.ones(2) * (1 + dist.get_rank())\n    dist.all_reduce(x)\n    return x.tolist()\n"
        "def fail():\n    if dist.get_rank() == 1:\n        raise RuntimeError('rank one is unwell')\n    total()\n"
    )
    mine = {"PYTHON": sys.executable, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    with one_host_slurm(tmp_path / "slurm") as environment:
        environment |= mine
        assert submit(environment, tmp_path, "mine:total", 2) == (0, "[3.0, 3.0]\n")
        status, said = submit(environment, tmp_path, "mine:fail", 2)
        assert status != 0 and "rank one is unwell" in said
