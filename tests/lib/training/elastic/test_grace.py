"""SIGTERM: all ranks finish the same step, save, and say that they want to go on."""

import json
import os
import signal
import subprocess
import sys
import threading
from importlib.resources import files

import pytest
import torch.distributed as dist
from slurm import one_host_slurm, wait_until
from threeloops.training.cluster import Cluster
from threeloops.training.elastic import RESUME_ME, Grace

SCRIPT = str(files("threeloops.training.elastic") / "requeue.sh")


def test_the_signal_is_noted_and_nothing_else_happens():
    before = signal.getsignal(signal.SIGTERM)
    with Grace((signal.SIGTERM, signal.SIGUSR1)) as grace:
        assert grace.requested is None
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert grace.requested is signal.SIGUSR1, "the first one"
    assert signal.getsignal(signal.SIGTERM) is before and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_only_the_main_thread_can_enter():
    errors = []

    def enter():
        try:
            Grace().__enter__()
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(10)
    assert "main thread" in errors[0]


def stops(asked):
    """Rank 1 is asked to end during step 3."""
    with Grace() as grace:
        for step in range(10):
            if dist.get_rank() == 1 and step == 3 and asked:
                os.kill(os.getpid(), signal.SIGTERM)
            if grace.agreed():
                return step, grace.requested
    return None


def test_all_ranks_stop_after_the_step_in_which_one_was_asked():
    assert Cluster(3).run(stops, True).results == ((3, None), (3, signal.SIGTERM), (3, None))
    assert Cluster(3).run(stops, False).results == (None,) * 3


@pytest.mark.slow
def test_a_job_is_requeued_by_slurm_and_resumes(tmp_path):
    """SIGTERM to the script of a real job, as before a time limit. Not one step is lost or repeated, although the job
    saves at its end alone. Slurm lets a requeued job wait for two minutes, so that its old credentials
    are forgotten; the test asks for a few seconds."""
    (tmp_path / "mine.py").write_text(
        "import sys\nfrom pathlib import Path\n"
        "from threeloops.training.elastic.demo import train\nfrom threeloops.training.elastic import RESUME_ME\n"
        "def job():\n    sys.exit(0 if train(Path('run'), 20, 1000, 0.1) else RESUME_ME)\n"
    )
    log = tmp_path / "run" / "log.jsonl"
    with one_host_slurm(tmp_path / "slurm") as environment:
        environment |= {"PYTHON": sys.executable, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}

        def slurm(*command):
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        def state():
            return slurm("scontrol", "show", "job", job)

        sbatch = ("sbatch", "--parsable", "--ntasks", "2", "--output", "out", SCRIPT)
        job = slurm(*sbatch, "mine:job", "--backend", "gloo")
        wait_until(lambda: log.exists() and '"step": 3' in log.read_text(), 60, "step 3")
        slurm("scancel", "--batch", "--signal=TERM", job)
        wait_until(lambda: "JobState=PENDING" in state(), 60, "the job to be requeued")
        before = len(log.read_text().splitlines())
        slurm("scontrol", "update", f"JobId={job}", "StartTime=now+5")
        wait_until(lambda: "JobState=COMPLETED" in state(), 60, "the job's end")
        assert "Restarts=1" in state() and "ExitCode=0:0" in state()
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert steps == list(range(20)) and 4 <= before < 20
    assert f"exit code {RESUME_ME}" in (tmp_path / "out").read_text()
