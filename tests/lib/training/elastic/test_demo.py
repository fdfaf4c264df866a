"""Real processes under torchrun: a worker is killed with SIGKILL, then a whole node, and training ends all the same."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import psutil
import pytest
import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.elastic.demo import _batch
from torch.distributed import TCPStore

SECONDS = 120


def losses_of_one_process(steps):
    """The oracle: no ranks, no restarts, the whole batch."""
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(max_sequence=16)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        tokens = _batch(step)
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@contextlib.contextmanager
def torchrun(folder, steps, every, *options):
    """An agent in a session of its own; whatever is left of it is gone at the end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "3", "--monitor-interval", "0.1"]
    demo = ["-m", "threeloops.training.elastic.demo", str(folder), "--steps", str(steps), "--every", str(every)]
    with open(folder / "said", "ab") as said:
        agent = subprocess.Popen(
            [*command, *options, *demo, "--step-seconds", "0.05"], env=environment, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield agent
    finally:
        kill(agent)


def kill(agent):
    """The agent and its workers, which have sessions of their own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in [*psutil.Process(agent.pid).children(recursive=True), psutil.Process(agent.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    agent.wait(10)


def log(folder):
    text = (folder / "log.jsonl").read_text() if (folder / "log.jsonl").exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def wait_for(folder, holds):
    deadline = time.monotonic() + SECONDS
    while not any(map(holds, log(folder))):
        assert time.monotonic() < deadline, (folder / "said").read_text()[-2000:]
        time.sleep(0.01)


def same_losses(lines, steps):
    expected = losses_of_one_process(steps)
    for line in lines:
        assert line["loss"] == pytest.approx(expected[line["step"]], rel=1e-11)
    assert [line["step"] for line in lines][-1] == steps - 1


def test_a_worker_is_killed_and_torchrun_resumes(tmp_path):
    with torchrun(tmp_path, 8, 3, "--standalone", "--nproc-per-node", "2") as agent:
        wait_for(tmp_path, lambda line: line["step"] == 4)
        os.kill(int((tmp_path / "rank 1").read_text()), signal.SIGKILL)
        assert agent.wait(SECONDS) == 0, (tmp_path / "said").read_text()[-2000:]
    lines = log(tmp_path)
    same_losses(lines, 8)
    again = [line["step"] for line in lines if line["restarts"] == 1]
    assert again[0] in (3, 6) and again == list(range(again[0], 8)), "from the last checkpoint, and only once"
    first = {line["step"]: line["loss"] for line in lines if line["restarts"] == 0}
    for line in lines:
        assert line["loss"] == first.get(line["step"], line["loss"]), "the same bits"


def test_a_node_leaves_and_the_other_one_goes_on_with_its_own_workers(tmp_path):
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    options = [
        "--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-id", "job", "--rdzv-endpoint",
        f"127.0.0.1:{store.port}", "--local-addr", "127.0.0.1", "--rdzv-conf",
        "is_host=0,last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=2",
    ]  # fmt: skip
    two, one = (["--nproc-per-node", count, *options] for count in ("2", "1"))
    with torchrun(tmp_path, 12, 4, *two) as stays, torchrun(tmp_path, 12, 4, *one) as leaves:
        wait_for(tmp_path, lambda line: line["step"] == 5 and line["ranks"] == 3)
        kill(leaves)
        assert stays.wait(SECONDS) == 0, (tmp_path / "said").read_text()[-2000:]
    lines = log(tmp_path)
    same_losses(lines, 12)
    assert [line["ranks"] for line in lines] == sorted((line["ranks"] for line in lines), reverse=True)
    assert {line["ranks"] for line in lines} == {3, 2}
