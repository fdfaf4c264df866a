"""Save a checkpoint of your own state, and load it after every power cut that the rules of file systems allow."""

import tempfile
from pathlib import Path

import torch
from threeloops.training.checkpoint import Checkpointer, LocalStore
from threeloops.training.checkpoint.crash import check, recording


def state(step):
    return {"weights": torch.full((4,), float(step)), "step": step}


def checkpointer(folder, step):
    Checkpointer(LocalStore(folder)).save(step, state(step))


def load_checkpointer(folder):  # what the restarted program does
    return Checkpointer(LocalStore(folder)).load(state(0)).step


def torch_save(folder, step):
    with (folder / "state.pt").open("wb") as file:  # a file object of Python can be recorded
        torch.save(state(step), file)


def load_torch(folder):
    return torch.load(folder / "state.pt")["step"]


for save, load in ((checkpointer, load_checkpointer), (torch_save, load_torch)):
    with tempfile.TemporaryDirectory() as name:
        save(Path(name), 1)
        with recording(Path(name)) as recorder:
            save(Path(name), 2)
    report = check(recorder.record, load)
    print(f"{save.__name__}: {report}".splitlines()[0])  # the other lines say why
