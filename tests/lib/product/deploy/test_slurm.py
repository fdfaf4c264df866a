"""The job script: by itself, and as a real job of a Slurm of one host, with a small server in place of the service."""

import os
import signal
import subprocess
import sys
import urllib.request

import pytest
import yaml
from deployment import FILES, of, running, settings, start_seconds
from slurm import one_host_slurm, wait_until

SCRIPT = FILES / "slurm/serve.sbatch"
SERVER = f"""#!{sys.executable}
import os, signal, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

assert sys.argv[1:] == ["serve", "--config", "serve.toml"], sys.argv
if os.environ.get("BREAKS"):
    sys.exit(7)

class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" and not os.environ.get("LOADS_FOR_EVER") else 503)
        self.end_headers()

server = ThreadingHTTPServer(("127.0.0.1", int(os.environ["THREELOOPS_SERVE_PORT"])), Ready)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
server.serve_forever(0.05)
print("drained", flush=True)
"""
OVERRIDES = ["--gres=none", "--mem=0", "--cpus-per-task=1", "--time=5"]
"""The node of the test has no GPU and claims no memory."""


def directives() -> dict[str, str]:
    lines = [line.split(maxsplit=1)[1] for line in SCRIPT.read_text().splitlines() if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (line.removeprefix("--").partition("=") for line in lines)}


@pytest.fixture
def environment(tmp_path):
    """Variables with which the script finds the small server, and settings and targets in the test's folder."""
    server = tmp_path / "bin/threeloops"
    server.parent.mkdir()
    server.write_text(SERVER)
    server.chmod(0o755)
    own = {"PATH": f"{server.parent}:{os.environ['PATH']}", "THREELOOPS_CONFIG": "serve.toml"}
    return {**os.environ, **own, "THREELOOPS_TARGETS": str(tmp_path / "targets"), "SLURM_JOB_ID": "7"}


def answers(target) -> bool:
    ((address,),) = [each["targets"] for each in yaml.safe_load(target.read_text())]
    port = address.rpartition(":")[2]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
        return answer.status == 200


def test_bash_accepts_it():
    assert subprocess.run(["bash", "-n", SCRIPT]).returncode == 0


def test_the_drain_fits_between_the_signal_and_the_time_limit():
    lead = int(directives()["signal"].removeprefix("B:TERM@"))
    assert lead >= settings()["drain_seconds"] + 60, "Slurm may send the signal up to a minute late"
    startup = of("kubernetes/base/deployment.yaml")["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    assert f"THREELOOPS_START_SECONDS:-{start_seconds(startup):g}" in SCRIPT.read_text()


def test_prometheus_reads_the_folder_into_which_it_writes():
    (job,) = of("prometheus/prometheus.yml")["scrape_configs"]
    assert job["file_sd_configs"][0]["files"] == ["targets/*.yml"]
    assert "THREELOOPS_TARGETS:-$PWD/targets" in SCRIPT.read_text()


def test_without_settings_it_says_what_is_missing(environment):
    del environment["THREELOOPS_CONFIG"]
    done = subprocess.run(["bash", SCRIPT], env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode != 0 and "THREELOOPS_CONFIG=serve.toml" in done.stderr


def test_a_server_that_does_not_start_ends_the_job_with_its_status(environment, tmp_path):
    done = subprocess.run(["bash", SCRIPT], env={**environment, "BREAKS": "1"}, capture_output=True, timeout=60)
    assert done.returncode == 7
    assert not list((tmp_path / "targets").iterdir()), "announced, though it was never ready"


def test_a_model_that_never_loads_is_given_up(environment, tmp_path):
    never = {**environment, "LOADS_FOR_EVER": "1", "THREELOOPS_START_SECONDS": "1"}
    done = subprocess.run(["bash", SCRIPT], env=never, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "not ready after 1 s" in done.stderr and "drained" in done.stdout
    assert not list((tmp_path / "targets").iterdir())


def test_sigterm_withdraws_the_replica_and_lets_it_drain(environment, tmp_path):
    target, log = tmp_path / "targets/7.yml", tmp_path / "log"
    with running(["bash", str(SCRIPT)], log, env=environment) as job:
        wait_until(target.exists, 30, f"the replica to announce itself: {log}")
        assert answers(target)
        job.send_signal(signal.SIGTERM)
        assert job.wait(30) == 0
    assert "drained" in log.read_text() and not target.exists()


def test_slurm_runs_it(environment, tmp_path):
    with one_host_slurm(tmp_path / "slurm") as slurm:
        there = {**environment, **slurm, "PATH": f"{environment['PATH']}:/usr/sbin:/sbin"}
        del there["SLURM_JOB_ID"]

        def call(*command):
            done = subprocess.run(command, env=there, cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        call("sbatch", "--test-only", *OVERRIDES, str(SCRIPT))
        job = call("sbatch", "--parsable", *OVERRIDES, str(SCRIPT))
        target, log = tmp_path / f"targets/{job}.yml", tmp_path / f"threeloops-serve-{job}.log"
        wait_until(target.exists, 30, f"the job to announce itself: {log}")
        assert answers(target)
        call("scancel", "--batch", "--signal=TERM", job)
        wait_until(lambda: not call("squeue", "--noheader"), 30, "the job to end")
        assert "drained" in log.read_text() and not target.exists()
