"""Save in a child process, kill it at a random moment, and load; over and over. `python killed_saves.py FOLDER KILLS`
prints what was found as JSON.

A process of its own, since it forks: pytest's process has threads.
"""

import json
import os
import random
import select
import signal
import sys
import time
import warnings

import torch
from threeloops.training.checkpoint import Checkpointer, LocalStore

ELEMENTS = 30_000


def state(step):
    """One tensor that changes in every step, one that changes in some blocks, and one that never does."""
    some = torch.arange(600_000, dtype=torch.float32)
    some[(step * 50_021) % len(some)] = step
    return {"all": torch.full((ELEMENTS,), float(step)), "some": some, "same": torch.ones(ELEMENTS), "step": step}


def whole(loaded):
    expected = state(loaded.step)
    return loaded.state["step"] == loaded.step and all(
        torch.equal(loaded.state[name], expected[name]) for name in ("all", "some", "same")
    )


def save_until_killed(folder, acknowledged, asynchronous):
    checkpointer = Checkpointer(LocalStore(folder), keep=2, full_every=4, milestones=0)
    step = checkpointer.load().step if any(name.startswith("step") for name in os.listdir(folder)) else 0
    while True:
        step += 1
        if asynchronous:
            checkpointer.save_async(step, state(step))
            checkpointer.wait()
        else:
            checkpointer.save(step, state(step))
        os.write(acknowledged, step.to_bytes(8, "little"))


def kill_once(folder, asynchronous, delay):
    """Let a child save, and kill it so many seconds after its first save; the last step that it acknowledged."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            save_until_killed(folder, write, asynchronous)
        finally:
            os._exit(1)
    os.close(write)
    last = int.from_bytes(os.read(read, 8), "little")
    started = time.monotonic()
    while (left := started + delay - time.monotonic()) > 0:
        if select.select([read], [], [], left)[0]:
            last = int.from_bytes(os.read(read, 8), "little")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while data := os.read(read, 8):
        last = int.from_bytes(data, "little")
    os.close(read)
    return last


def main(folder, kills):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    draw = random.Random(0)
    found = {"kills": 0, "lost": 0, "broken": 0, "interrupted": 0, "acknowledged": 0}
    started = time.monotonic()
    Checkpointer(LocalStore(folder)).save(1, state(1))
    once = time.monotonic() - started
    for number in range(kills):
        last = kill_once(folder, number % 2 == 1, draw.uniform(0, once))
        loaded = Checkpointer(LocalStore(folder)).load()
        found["kills"] += 1
        found["lost"] += loaded.step < last
        found["broken"] += not whole(loaded) or bool(loaded.skipped)
        found["interrupted"] += any(name.endswith(".tmp") for name in os.listdir(folder))
        found["acknowledged"] = last
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
