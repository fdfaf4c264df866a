"""A Slurm of one host for a test: munged, slurmctld and slurmd in one folder, on free ports, and gone afterwards.

It can have several nodes, each with a slurmd of its own, which a test may kill and start again.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_PARTS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
_CONFIGURATION = """
ClusterName=one_host
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={spool}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
FirstJobId={first_job}
KillWait=5
SlurmdTimeout=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{node_lines}
PartitionName=all Nodes=ALL Default=YES OverSubscribe=NO State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL State=UP PriorityTier=2
"""


@dataclass
class Cluster:
    """A running Slurm. `environment` is that of its commands, and `nodes` holds the daemon of each node."""

    folder: Path
    environment: dict[str, str]
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_node(self, name: str) -> None:
        with (self.folder / "slurmd.log").open("ab") as log:
            self.nodes[name] = subprocess.Popen(
                [shutil.which("slurmd", path=self.environment["PATH"]), "-D", "-N", name],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill_node(self, name: str) -> None:
        """Kill a node's daemon. Its tasks go on, because each has a daemon of its own."""
        self.nodes[name].send_signal(signal.SIGKILL)
        self.nodes[name].wait()

    def states(self) -> dict[str, str]:
        """Return the state of each node, as sinfo names it."""
        seen = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%N %T"], env=self.environment, capture_output=True, text=True
        )
        return dict(line.split() for line in seen.stdout.splitlines())

    def is_idle(self) -> bool:
        return set(self.states().values()) == {"idle"}

    def end_nodes(self) -> None:
        for process in self.nodes.values():
            _end(process)


@contextlib.contextmanager
def one_host_slurm(folder: Path, seconds: float = 30.0, nodes: int = 1, cpus: int = 8):
    """The environment of `one_host_cluster`, for tests that need nothing else of it."""
    with one_host_cluster(folder, seconds, nodes, cpus) as cluster:
        yield cluster.environment


@contextlib.contextmanager
def one_host_cluster(folder: Path, seconds: float = 30.0, nodes: int = 1, cpus: int = 8):
    """A Slurm to which sbatch, srun and scontrol talk in its environment. Each node claims so many CPUs. A job of the
    partition `urgent` takes the place of one that runs in the default partition, which is then queued again."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    programs = {name: shutil.which(name, path=path) for name in _PARTS}
    if missing := [name for name, found in programs.items() if found is None]:
        pytest.skip(f"there is no {', '.join(missing)} here: apt install slurm-wlm munge")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state").mkdir()
    spool = Path(tempfile.mkdtemp(prefix="slurmd-"))  # of slurmstepd's sockets, whose paths have at most 107 bytes
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    configuration = folder / "slurm.conf"
    controller_port, *node_ports = free_ports(1 + nodes)
    host = socket.gethostname().partition(".")[0]
    names = [host] if nodes == 1 else [f"n{number}" for number in range(nodes)]
    node_lines = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=16000 State=UNKNOWN"
        for name, port in zip(names, node_ports, strict=True)
    )
    configuration.write_text(
        _CONFIGURATION.format(
            host=host, folder=folder, spool=spool, user=os.getuid(), controller_port=controller_port,
            node_lines=node_lines, first_job=random.randrange(1, 1 << 20),
        )
    )  # fmt: skip
    for name in names:
        (spool / name).mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    environment |= {"SLURM_CONF": str(configuration), "PATH": path}
    with contextlib.ExitStack() as running:
        running.callback(shutil.rmtree, spool, ignore_errors=True)
        munged = [
            "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munge.seed",
        ]  # fmt: skip
        for name, arguments in (("munged", munged), ("slurmctld", ["-D"])):
            log = running.enter_context((folder / f"{name}.log").open("ab"))
            process = subprocess.Popen(
                [programs[name], *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            running.callback(_end, process)
            if name == "munged":
                wait_until((folder / "munge.socket").exists, seconds, f"munged: {folder}/munged.log")

        cluster = Cluster(folder, environment)
        running.callback(cluster.end_nodes)
        for name in names:
            cluster.start_node(name)
        wait_until(cluster.is_idle, seconds, f"a node that is idle: {folder}/slurmctld.log and slurmd.log")
        yield cluster


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens at present."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_until(holds, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"after {seconds:g} s still waiting for {what}"
        time.sleep(0.05)


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
