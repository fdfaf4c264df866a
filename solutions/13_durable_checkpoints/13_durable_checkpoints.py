# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
#   threeloops:
#     title: What is left after a power cut?
#     minutes: 195
#     withholds: [threeloops.files, threeloops.training.checkpoint.checkpointer, threeloops.training.checkpoint.saving, threeloops.training.checkpoint.store, threeloops.training.checkpoint.writer, threeloops.training.checkpoint.reader, threeloops.training.checkpoint.manifest, threeloops.training.checkpoint.state, threeloops.training.checkpoint.dcp, threeloops.lab.drawings]
#     edition: 2
# ---

# %% [markdown]
# # What is left after a power cut?
#
# ![The operations of a save, a power cut after the last one, and three boxes with what may be on the disk](attachment:opening.png)
#
# Your training run has saved a checkpoint, and the program has printed "saved". A second later the power fails. What is on
# the disk?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import hashlib
import io
import json
import os
import random
import re
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from threeloops.lab import (
    animate,
    audit,
    calibration,
    check,
    debrief,
    explore,
    figure,
    hint,
    myth,
    palette,
    predict,
    reveal,
    show,
    term,
    together,
)
from threeloops.lab.checking.on_cluster import on_cluster
from threeloops.lab.disks.on_disk import on_disk, on_folders
from threeloops.lab.disks.saving import saving
from threeloops.lab.disks.syncs import BEFORE, PLACES, SAVE, with_syncs
from threeloops.training.checkpoint.crash import DiskFull, ShortWrites, SyncFails, crash_states
from threeloops.training.checkpoint.crash import check as load_all_states
from threeloops.training.checkpoint.crash.explore import loaded
from threeloops.training.checkpoint.crash.model.states import files_after
from threeloops.training.cluster import Cluster, ask
from torch import nn
from torch.optim import AdamW


def content(size, seed):
    return random.Random(seed).randbytes(size)


def sync_folder(folder):
    """Fsync a folder: return when the names in it are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Exercises 1 and 2: programs that call your function, and readers that look at what a power cut may leave.


def replaces(folder, saved, replace_file, name, contents):
    for data in contents:
        replace_file(folder / name, data)
        saved()


def saves(folder, saved, save_step, steps):
    for step, files in steps:
        save_step(folder, step, files)
        saved()


def load_file(folder, name):
    path = folder / name
    return path.read_bytes() if path.exists() else None


def contents_of(folder):
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def load_latest(folder):
    """The files of the step that `latest` names; None if there is no `latest`."""
    pointer = folder / "latest"
    if not pointer.exists():
        return None
    return contents_of(folder / pointer.read_text())


def load_newest(folder):
    """The files of the step folder with the largest number; None if there is none."""
    names = sorted(path.name for path in folder.glob("step-*") if path.name[5:].isdigit())
    return contents_of(folder / names[-1]) if names else None


def folder_of(step):
    return f"step-{step}"


def on_disk_after(steps, latest=True):
    """The files of a folder in which these steps were saved."""
    files = {}
    for step, contents in steps:
        files[folder_of(step)] = None
        files |= {f"{folder_of(step)}/{name}": data for name, data in contents.items()}
    return files | ({"latest": folder_of(steps[-1][0]).encode()} if latest else {})


def told(state):
    return f"power cut  {state.story[:300]}\n    cause      {state.cause[:300]}"


def require_safe(run, load, values, case):
    """Each state that a power cut may leave is legal. `values` are those of before the record and after each save."""
    try:
        report = load_all_states(run.record, load, values=values, most=600)
    except ValueError as error:
        check.true(False, f"{case}: {error}")
    if report.ok:
        check.true(True, "")
        return
    found, count = report.bad[0], report.count("lost") + report.count("broken")
    said = {"lost": "a save had returned, and what it saved is lost", "broken": "neither the old nor the new content"}
    check.true(
        False,
        f"{case}: of {report.states} states that a power cut may leave, {count} {'is' if count == 1 else 'are'} bad. "
        f"The simplest\n    left       {said[found.verdict]}{': ' + found.what[:300] if 'raised' in found.what else ''}\n"
        f"    {told(found.state)}",
    )


# Exercise 3: the format of a checkpoint.


def digest(data):
    return hashlib.sha256(data).hexdigest()


def manifest_of(values, files):
    """Line 1 is JSON, and line 2 is the SHA-256 of line 1 (without its newline)."""
    entries = {name: {"size": len(data), "sha256": digest(data)} for name, data in files.items()}
    line = json.dumps({"values": values, "files": entries})
    return f"{line}\n{digest(line.encode())}\n".encode()


def checkpoints(*steps):
    """A folder with checkpoints, each given as (step, values, files)."""
    found = {}
    for step, values, files in steps:
        found |= {f"step-{step}": None, f"step-{step}/manifest.json": manifest_of(values, files)}
        found |= {f"step-{step}/{name}": data for name, data in files.items()}
    return found


# Exercise 4: the test calls a saver step by step. Each write waits until the test lets it continue.


def trains_on(saver_class, rows):
    """Save once, and continue training before the write. Return the tensors that were written, and the log."""
    whole = torch.arange(6.0 * rows).reshape(rows, 6) / 3
    state = {"weight": whole, "column": whole[:, 2], "step": torch.tensor(7)}
    with saving(saver_class, state, parameters=("weight",)) as run:
        run.save(1)
        for name in ("weight", "step"):
            run.state[name].mul_(-2)
        run.let_go(1)
        run.wait()
    return run.written.get(1), run.log, run.attached


def saves_often(saver_class, count, size):
    """Saves one after the other: how many different places in memory the written copies had."""
    with saving(saver_class, {"a": torch.zeros(size), "b": torch.zeros(3, size)}) as run:
        for step in range(1, count + 1):
            for tensor in run.state.values():
                tensor.add_(0.5)
            run.save(step)
            for tensor in run.state.values():
                tensor.add_(0.5)
            run.let_go(step)
            run.wait()
    places = {name: len(run.places.get(name, ())) for name in ("a", "b")}
    return places, [float(written["a"][0]) for written in run.written.values()]


def saves_again(saver_class, size, held):
    """A second save while the first is still being written, for `held` seconds; and its log. The state changes while the
    second save waits, which tells when it copies."""
    with saving(saver_class, {"a": torch.ones(size)}) as run:
        run.save(1)
        run.state["a"].fill_(2.0)
        second = run.save_beside(2)
        second.join(held)
        run.state["a"].fill_(3.0)
        run.let_go(1)
        second.join()
        run.let_go(2)
        run.wait()
    return {step: sorted(set(written["a"].tolist())) for step, written in run.written.items()}, run.log


def fails_once(saver_class, calls, fails):
    """Return what each call of save (a step) or wait (None) raised, and which steps were written."""
    said = []
    with saving(saver_class, {"a": torch.ones(3)}, fails) as run:
        run.let_go()
        for step in calls:
            try:
                run.wait() if step is None else run.save(step)
            except Exception as error:
                said.append(str(error))
            else:
                said.append("")
    return said, [line.split()[1] for line in run.log if line.endswith("begins")]


# Exercise 5: a small training run, one per rank.

torch.set_num_threads(1)  # as on the ranks: with more threads, sums differ in the last bit


class LossScale:
    """Halved when gradients overflow in float16, doubled after three steps without."""

    def __init__(self):
        self.scale, self.good_steps = 2.0**12, 0

    def update(self, overflow):
        self.good_steps = 0 if overflow else self.good_steps + 1
        if overflow or self.good_steps == 3:
            self.scale, self.good_steps = self.scale * (0.5 if overflow else 2.0), 0

    def state_dict(self):
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load_state_dict(self, state):
        self.scale, self.good_steps = state["scale"], state["good_steps"]


class Samples:
    """The rank's own samples, drawn in a new order for each epoch. `order` and `position` say where it is in the
    epoch; `generator` draws the next order."""

    def __init__(self, seed, count=10):
        self.generator = torch.Generator().manual_seed(seed)
        self.order, self.position, self.count = [], count, count

    def next(self, batch=4):
        """The numbers of the next samples."""
        if self.position + batch > self.count:
            self.order = torch.randperm(self.count, generator=self.generator).tolist()
            self.position = 0
        self.position += batch
        return self.order[self.position - batch : self.position]


class Run:
    """A rank of a training run. `random_parts` are dropout and noise; without them each batch is the same, too."""

    def __init__(self, seed, rank, random_parts=True):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.optimizer = AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.8**step)
        self.scaler, self.samples = LossScale(), Samples(10 * seed + rank)
        self.random_parts = random_parts
        torch.manual_seed(100 * seed + rank)
        random.seed(100 * seed + rank)

    def step(self):
        """Trains one batch. Returns what was drawn, and the loss."""
        for buffer in self.model.buffers():
            dist.broadcast(buffer, 0)  # as DDP does: rank 0's batch statistics count
        did, gradients = self.backward(lambda numbers: ask("rows", numbers))
        dist.all_reduce(gradients)
        self.update(gradients, dist.get_world_size())
        return did

    def backward(self, read):
        """Return what was drawn, the loss, and this rank's gradients in one tensor; `read` gets the rows of these samples."""
        chosen, mask, noise = self.samples.next(), torch.ones(4, 4), 0.0
        if self.random_parts:
            mask, noise = (torch.rand(4, 4) < 0.8).float(), random.random()
        x = read(chosen if self.random_parts else [0, 3, 5, 9])
        y = self.model(x * mask + 0.1 * noise)
        loss = ((y - x.sum(1, keepdim=True) ** 2) ** 2).mean()
        self.optimizer.zero_grad()
        (loss * self.scaler.scale).backward()
        gradients = torch.cat([each.grad.flatten() for each in self.model.parameters()]).half().float()
        drawn = [round(noise, 9), *mask.flatten().int().tolist()]
        return {"samples": chosen, "drawn": drawn, "loss": float(loss.detach())}, gradients

    def update(self, gradients, ranks):
        """A step of the optimizer with the sum of all ranks' gradients, if there was no overflow."""
        overflow = not bool(torch.isfinite(gradients).all())
        gradients = gradients / (ranks * self.scaler.scale)
        parameters = list(self.model.parameters())
        for parameter, part in zip(parameters, gradients.split([each.numel() for each in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
        if not overflow:
            self.optimizer.step()
            self.scheduler.step()
        self.scaler.update(overflow)

    def tensors(self):
        """A copy of the model's parameters and buffers."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}


SHARED = "model", "optimizer", "scheduler", "scaler"  # parts of a run with `state_dict()`, the same on all ranks
OWN = "torch", "python", "order", "position", "generator"  # differ between ranks; the last three are in `run.samples`


def captured(capture, before, after, random_parts):
    """Save what `capture` returned after `before` steps, but only after some more. Return the bytes of the file."""
    run = Run(ask("seed"), dist.get_rank(), random_parts)
    for _ in range(before):
        run.step()
    saved = capture(run)
    for _ in range(after):
        run.step()
    file = io.BytesIO()
    torch.save(saved, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def resumed(restore, after, random_parts):
    """Resume from such a file in a new program. Return what the run does in `after` steps, and its model after them."""
    run = Run(ask("seed"), dist.get_rank(), random_parts)
    run.step()
    restore(run, torch.load(io.BytesIO(ask("saved").numpy().tobytes()), weights_only=True))
    return [run.step() for _ in range(after)], run.tensors()


# %% tags=["setup", "oracle"] nbgrader={"grade": false, "grade_id": "oracles", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
# In graded runs, your answers cannot call the functions of this cell.


def uninterrupted(ranks, steps, random_parts, seed, rows):
    """Run all ranks in one process. Return what each rank does in each step, and its model after the last one."""
    runs, states, did = [], [], [[] for _ in range(ranks)]
    for rank in range(ranks):
        runs.append(Run(seed, rank, random_parts))
        states.append((torch.get_rng_state(), random.getstate()))
    for _ in range(steps):
        for run in runs[1:]:
            for buffer, first in zip(run.model.buffers(), runs[0].model.buffers(), strict=True):
                buffer.copy_(first)
        total = 0.0
        for rank, run in enumerate(runs):
            torch.set_rng_state(states[rank][0])
            random.setstate(states[rank][1])
            drawn, gradients = run.backward(lambda numbers: rows[numbers])
            states[rank] = torch.get_rng_state(), random.getstate()
            did[rank].append(drawn)
            total = total + gradients
        for run in runs:
            run.update(total, ranks)
    return [(steps_of_rank, run.tensors()) for steps_of_rank, run in zip(did, runs, strict=True)]


def continued(capture, restore, ranks, before, after, random_parts, seed=1):
    """For each rank: what a run does in `after` steps after the first `before`, what a run does that was resumed there,
    and the models of both. The samples of the resumed run are those that it has read."""
    rows = 2 * torch.rand(10, 4, generator=torch.Generator().manual_seed(seed)) - 1
    read = [[] for _ in range(ranks)]

    def read_rows(rank, numbers):
        read[rank].append(list(numbers))
        return rows[numbers]

    served = {"rows": read_rows, "seed": lambda rank: seed}
    saved = on_cluster(Cluster(ranks), captured, capture, before, 2, random_parts, served=served).results[0]
    for rank in range(ranks):
        what = f"batches that rank {rank} reads, {before} before capture and 2 after it"
        check.equal(len(read[rank]), before + 2, what=what)
    read = [[] for _ in range(ranks)]
    served = {"rows": read_rows, "seed": lambda rank: 5, "saved": lambda rank: saved}
    run = on_cluster(Cluster(ranks), resumed, restore, after, random_parts, served=served)
    alone = uninterrupted(ranks, before + after, random_parts, seed, rows)
    compared = []
    for rank, ((did, model), (found, other)) in enumerate(zip(alone, run.results, strict=True)):
        check.equal(
            len(read[rank]), 1 + after, what=f"batches that rank {rank} reads, one before restore and {after} after it"
        )
        found = [each | {"samples": numbers} for each, numbers in zip(found, read[rank][1:], strict=True)]
        compared.append((did[before:], found, model, other))
    return compared


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
plot, axes = figure(width=9.5, height=3.0)
for place, text in enumerate(
    ("write 500 MB to checkpoint.tmp", "rename checkpoint.tmp → checkpoint", 'print("saved")')
):
    axes.scatter([0.1], [2.4 - 0.75 * place], s=90, color=palette.green)
    axes.text(0.3, 2.4 - 0.75 * place, text, va="center", size=12)
axes.plot([0, 4.3], [0.45, 0.45], color=palette.vermillion, lw=2, ls="--")
axes.text(0.3, 0.2, "the power fails", va="center", color=palette.vermillion, size=12)
axes.annotate("", (5.3, 1.65), (4.4, 1.65), arrowprops={"arrowstyle": "->", "color": palette.ink, "lw": 1.5})
for place, text in enumerate(("the old checkpoint?", "the new one?", "something else?")):
    axes.barh([2.4 - 0.75 * place], [3.0], left=5.6, height=0.6, color=palette.sky, alpha=0.5)
    axes.text(7.1, 2.4 - 0.75 * place, text, ha="center", va="center", size=12)
axes.set(xlim=(-0.1, 8.8), ylim=(0, 2.9))
axes.axis("off")
show.figure(
    plot, "The operations of a save, a power cut after the last one, and three boxes with what may be on the disk"
)

# %% [markdown]
# A run of many weeks is interrupted many times (lab 14). Only its checkpoints remain, so this lab asks for saves that
# survive *every* interruption, and a restart that continues as if there had been none.
#
# ## 1 · What the kernel promises
#
# `write` copies bytes into the kernel's memory, and they go to the disk later. If your *process* is killed, nothing
# that `write` took is lost. (Python's file objects collect bytes first; `file.flush()` hands them to the kernel.) If
# the *power* fails, the kernel's memory is gone. By then, any part of the pending writes may have reached the disk, in
# any order, because kernel and disk reorder writes to be fast. Three calls give some order back:
#
# - **fsync of a file** (`os.fsync(file.fileno())`, after `file.flush()`) returns when the file's content is on the disk.
# - A file's *name* is part of its folder. **fsync of a folder** (the given `sync_folder(folder)` opens it and calls `os.fsync`)
#   returns when the names in it are on the disk: files that were created, renamed or removed.
# - **rename** (`os.replace(old, new)`) changes what a name stands for in one step: a power cut leaves the old file or the new
#   one under the name. It says nothing about their content.
#
# The disk writes sectors of 512 bytes, each whole or not at all. These are the weak rules with which researchers test
# programs (ALICE, 2014); here they are called `POSIX`. ext4 and XFS promise more, each in its own way.
#
# *Worked example.* `path.write_bytes(new)` over a file cuts it to zero bytes and then writes 1,300 bytes, which are
# three sectors. A power cut may leave the old content. It may also leave a file of 0, 512, 1,024 or 1,300 bytes, in
# which each sector has arrived or is still zeros: 1 + 2 + 4 + 8 = 15 states. With the old content that is 16: one
# old, one new, and 14 that are neither. The next cell records the call, enumerates the states that a power cut may
# leave after *each* operation (32 in all: these 16 before the call has returned, and the same 16 after it), and loads
# each. A state is "broken" if it holds neither content, and "lost" if it holds the old one after the call has returned.
#
# ### Exercise 1 (22 points)
#
# `replace_file(path, data)` replaces the content of `path`, in an existing folder, by the bytes `data`.
#
# - Whenever the power fails, `path` has its old content or the new one; if it did not exist before, it may still not
#   exist. Once the call has returned, only the new content is possible.
# - When it returns, the folder holds no other new file. Files that an earlier power cut has left there must not make
#   it fail.
# - If a write or an fsync of the file fails, pass the `OSError` on. `path` then has its old content, and the folder
#   holds no new file.
# - `os.write` may take only a part of the bytes. It returns how many. Python's file objects continue by themselves.
#
# Files written with Python's `open`, `os`, `pathlib`, `shutil` or `tempfile` are recorded.


# %% tags=["demo"]
def overwrites(folder, saved, data):
    (folder / "model").write_bytes(data)


run = on_disk(overwrites, content(1300, 1), files={"model": content(1200, 0)})
for number, operation in enumerate(run.record.operations):
    print(number, operation)
print(load_all_states(run.record, lambda folder: load_file(folder, "model")))
predict(
    "rename",
    "Write the 1,300 bytes to model.tmp and rename it to model, without any fsync. The power fails after the rename. It may leave 31 states: in how many does model hold neither the old nor the new content?",
)


# %% nbgrader={"grade": false, "grade_id": "replace_file", "locked": false, "schema_version": 3, "solution": true, "task": false}
def replace_file(path: Path, data: bytes) -> None:
    """The old content or the new one, whenever the power fails."""
    ### BEGIN SOLUTION
    new = path.with_name(path.name + ".tmp")
    try:
        with open(new, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "replace_file_test_values", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("replace_file", "the new content, and nothing else", part="values", hidden="other sizes and contents"):

    def gives(old, *contents, name="model"):
        others = {"other": b"x" * 10}
        run = on_disk(replaces, replace_file, name, contents, files=others if old is None else {name: old, **others})
        found, case = files_after(run.record), f"{0 if old is None else len(old)} → {len(contents[-1])} bytes"
        check.equal(found.get(name), contents[-1], what=f"content of {name}, {case}")
        check.equal(sorted(found), sorted([name, "other"]), what=f"names in the folder, {case}")

    def gives_in_spite_of_leftovers(old, new, newer):
        """Call again after a power cut, once for each set of names that it may leave."""
        run = on_disk(replaces, replace_file, "model", [new], files={"model": old})
        left = {tuple(sorted(state.files)): state.files for state in crash_states(run.record, most=600).states}
        for names, files in left.items():
            again = on_disk(replaces, replace_file, "model", [newer], files=files)
            case = f"content of model, called after a power cut had left {list(names)}"
            check.equal(files_after(again.record).get("model"), newer, what=case)

    gives(content(1200, 0), content(1300, 1))
    gives(None, content(100, 2))
    gives(content(2000, 3), b"")
    gives(content(20, 4), content(10, 5), content(30, 6), name="latest")
    gives_in_spite_of_leftovers(content(700, 7), content(600, 8), content(10, 9))
    ### BEGIN HIDDEN TESTS
    gives(content(5, 10), content(200_000, 11), name="a b.bin")
    gives(b"", content(512, 12), content(513, 13))
    gives_in_spite_of_leftovers(content(10, 14), content(1100, 15), content(1200, 16))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "replace_file_test_states", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("replace_file", "every state that a power cut may leave", part="states", hidden="other sizes and names"):

    def survives(old, *contents, name="model"):
        run = on_disk(replaces, replace_file, name, contents, files={} if old is None else {name: old})
        case = f"{name}, {0 if old is None else len(old)} → {' → '.join(str(len(each)) for each in contents)} bytes"
        require_safe(run, lambda folder: load_file(folder, name), [old, *contents], case)

    survives(content(1200, 0), content(1300, 1))
    survives(None, content(100, 2))
    survives(content(400, 3), content(800, 4), content(600, 5))
    ### BEGIN HIDDEN TESTS
    survives(content(1024, 6), content(1025, 7))
    survives(content(2100, 8), content(1, 9), content(2000, 10))
    survives(content(30, 11), content(40, 12), name="model.tmp")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "replace_file_test_failures", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("replace_file", "a disk that fails", part="failures", hidden="other failures"):

    def fails(old, new, failure):
        what = f"{failure}, {len(new)} bytes"
        run = on_disk(replaces, replace_file, "model", [new], files={"model": old}, fail=failure)
        raised = "nothing" if run.error is None else f"{type(run.error).__name__}: {run.error}"
        check.true(
            isinstance(run.error, OSError), f"{what}: the call raised {raised}: expected the OSError of the disk"
        )
        found = files_after(run.record)
        check.equal(found.get("model"), old, what=f"content of model after the error, {what}")
        check.equal(sorted(found), ["model"], what=f"names in the folder after the error, {what}")
        require_safe(run, lambda folder: load_file(folder, "model"), [old, new], what)

    def goes_on(old, new, most):
        run = on_disk(replaces, replace_file, "model", [new], files={"model": old}, fail=ShortWrites(most))
        raised = "" if run.error is None else f"{type(run.error).__name__}: {run.error}"
        check.equal(raised, "", what=f"error if no write takes more than {most} bytes")
        what = f"content of model if no write takes more than {most} bytes"
        check.equal(files_after(run.record).get("model"), new, what=what)

    goes_on(content(300, 0), content(900, 1), 100)
    fails(content(300, 0), content(900, 1), DiskFull(500))
    fails(content(300, 0), content(900, 1), DiskFull(0))
    fails(content(300, 0), content(900, 1), SyncFails())
    ### BEGIN HIDDEN TESTS
    fails(content(300, 2), content(20_000, 3), DiskFull(19_999))
    fails(content(3, 4), content(2, 5), DiskFull(1))
    goes_on(content(300, 6), content(3000, 7), 7)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "replace_file",
    "Write a new file beside the old one, in the same folder, and rename it at the end. The old file is never touched.",
    "A rename can reach the disk before the content of the file that it moves. Which call prevents that, and when?",
    "When the call returns, the rename itself may still be in the kernel's memory only. Which folder holds the name?",
    "For failures: `try`, remove the temporary file in `except OSError`, and `raise`.",
)
from threeloops.lab.drawings import draw_power_cut, power_cuts


def renames(folder, saved, data):
    (folder / "model.tmp").write_bytes(data)
    (folder / "model.tmp").replace(folder / "model")


OLD, NEW = content(1200, 0), content(1300, 1)
cuts = {}
for name, program in (("overwriting", overwrites), ("a rename, no fsync", renames)):
    record = on_disk(program, NEW, files={"model": OLD}).record
    cuts[name] = power_cuts(record, lambda folder: load_file(folder, "model"), OLD, NEW)
frames = [(name, at) for name, moments in cuts.items() for at in range(len(moments))]
with reveal("rename"):
    verdicts = cuts["a rename, no fsync"][-1].verdicts
    show.against_prediction(
        "rename", verdicts.count("neither"), source=f"all {len(verdicts)} states after the rename, loaded"
    )
    animate(
        lambda frame: draw_power_cut(cuts[frames[frame][0]], frames[frame][1], f"Saving by {frames[frame][0]}"),
        range(len(frames)),
        seconds=1.4,
        caption="What a power cut may leave after each operation: each square is a state of the folder (blue: old content, green: new, red: neither)",
    )
debrief(
    "replace_file",
    """Until the rename, `path` stands for the old file, which nobody touches. After it, `path` stands for a file that is
    complete on the disk, because its fsync came first. The rename is the only moment of change, and it is one step. The
    last fsync makes the rename itself durable, so that "saved" is true when it is printed.

    Without the first fsync the new name may stand for an empty or torn file. That happened to many users of ext4 in 2009;
    since then it writes a file's data before a rename that replaces another file (`auto_da_alloc`). XFS gives no such
    guarantee. Without the last fsync the content stays consistent, but a save that you have reported may be lost.

    If an fsync fails, do not call it again: on Linux the pages may count as clean although they were never written. Start with a
    new file, or raise.""",
    parts=("values", "states", "failures"),
)

# %% [markdown]
# ## 2 · Many files, one moment
#
# A checkpoint has many files: one per rank, a list of them, a configuration. They must appear together. A **pointer**
# does that: a small file `latest` with the name of a folder. Readers follow it, so the content of folders that it
# does not name is irrelevant.
#
# *Worked example.* `latest` holds `step-1`. The program makes `step-2`, writes `model` and `optimizer`
# into it, and replaces `latest`. Five things must be on the disk before the new pointer may be: the two contents,
# their two names in `step-2`, and the name `step-2` itself in its parent. If only the last is missing,
# the pointer names a folder that does not exist, however well its files were synced.
#
# ### Exercise 2 (20 points)
#
# `save_step(folder, step, files)` saves `files`, a dictionary of bytes by name.
#
# - Afterwards they are in `folder_of(step)` inside `folder`, alone (`folder_of(2)` is `"step-2"`), and the file `latest` holds
#   just that name. Steps that were saved before stay as they are, even those with larger numbers, and nothing else is left.
# - Whenever the power fails, `latest` leads to all files of the step saved before (or does not exist, before the first save),
#   or to all of this one. After the call returns, `latest` must name this step.
# - A power cut may have left a part of this step's folder, to which `latest` does not point, and the program saves
#   that step again, perhaps with other files. The step that `latest` names is never saved again. Nothing of the old
#   part may stay.


# %% nbgrader={"grade": false, "grade_id": "save_step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def save_step(folder: Path, step: int, files: dict[str, bytes]) -> None:
    """All files of a step, and a pointer to them."""
    ### BEGIN SOLUTION
    import shutil

    def write(path, data):
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    place = folder / folder_of(step)
    if place.exists():
        shutil.rmtree(place)
    place.mkdir()
    for name, data in files.items():
        write(place / name, data)
    sync_folder(place)
    sync_folder(folder)
    write(folder / "latest.tmp", place.name.encode())
    os.replace(folder / "latest.tmp", folder / "latest")
    sync_folder(folder)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "save_step_test_values", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("save_step", "the files and the pointer", part="values", hidden="other files and steps"):

    def keeps(*steps, start=None):
        run = on_disk(saves, save_step, steps, files=start or {})
        found, expected = files_after(run.record), on_disk_after(steps)
        case = f"steps {[step for step, _ in steps]}" + (f", where there was {sorted(start)}" if start else "")
        check.equal(sorted(found), sorted(expected), what=f"names in the folder, {case}")
        for path, data in expected.items():
            check.equal(found[path], data, what=f"content of {path}, {case}")

    keeps((1, {"model": content(700, 1)}))
    keeps((7, {"model": content(100, 2), "optimizer": content(90, 3)}), (12, {"model": content(80, 4)}))
    left = {folder_of(3): None, folder_of(3) + "/old": b"left", folder_of(3) + "/older": b"left"}
    keeps((3, {"model": content(10, 5)}), start=left)
    keeps((9, {"model": content(20, 8)}), (4, {"model": content(30, 9)}))  # training went back, and is at step 4 again
    ### BEGIN HIDDEN TESTS
    keeps(*((step, {f"rank-{rank}": content(50 * step, rank) for rank in range(step)}) for step in (2, 3, 5)))
    keeps((4, {"a": b"", "b": content(9, 6)}), start={folder_of(4): None, folder_of(4) + "/a": content(600, 7)})
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "save_step_test_states", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("save_step", "every state that a power cut may leave", part="states", hidden="other files"):

    def survives(*steps, start=(), fail=None):
        """The first `start` steps are there already."""
        files = on_disk_after(steps[:start]) if start else {}
        run = on_disk(saves, save_step, steps[start:], files=files, fail=fail)
        case = f"steps {[step for step, _ in steps]}, of which {start} on the disk at the start"
        require_safe(run, load_latest, [None, *(files for _, files in steps)][start:], case)
        return run

    def survives_again(first, second, other):
        """A power cut during the second step; then that step is saved again, with other files."""
        run = survives(first, second, start=1)
        old, seen = folder_of(first[0]).encode(), set()
        for state in crash_states(run.record, most=600).states:
            if state.files.get("latest") == old and (names := tuple(sorted(state.files))) not in seen:
                seen.add(names)
                again = on_disk(saves, save_step, [(second[0], other)], files=state.files)
                case = f"step {second[0]} again, after a power cut had left {[n for n in names if n != 'latest']}"
                found = {
                    n.split("/")[1]: d
                    for n, d in files_after(again.record).items()
                    if n.startswith(folder_of(second[0]) + "/")
                }
                check.equal(sorted(found), sorted(other), what=f"names in {folder_of(second[0])}: {case}")
                require_safe(again, load_latest, [first[1], other], case)
                if len(seen) == 4:
                    break

    survives((1, {"model": content(600, 1), "optimizer": content(30, 2)}), start=0)
    survives((1, {"model": content(20, 3)}), (2, {"model": content(600, 4), "log": content(40, 5)}), start=1)
    survives_again((1, {"model": content(20, 6)}), (2, {"model": content(30, 7), "x": b"x"}), {"model": content(25, 8)})
    ### BEGIN HIDDEN TESTS
    survives(*((step, {name: content(100 + step, step) for name in "abc"}) for step in (3, 4, 5)), start=1)
    survives((8, {"a": content(5, 9)}), (9, {"a": content(1030, 10)}), start=1)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "save_step",
    "You may call your `replace_file` for the pointer; then this exercise needs it to be right.",
    "Before the pointer moves: an fsync of each file, one of the step's folder (names of the files), and one of `folder` (the "
    "name of the step's folder).",
    "For a step that is saved again: `shutil.rmtree` of what is left, before anything is written.",
)


def points_early(folder, saved, step, files):
    """A pointer that moves before the files are synced."""
    import os

    (folder / folder_of(step)).mkdir()
    (folder / "latest.tmp").write_text(folder_of(step))
    with open(folder / "latest.tmp") as file:
        os.fsync(file.fileno())
    os.replace(folder / "latest.tmp", folder / "latest")
    for name, data in files.items():
        (folder / folder_of(step) / name).write_bytes(data)


def saves_with_the_library(folder, saved, step, files):
    from threeloops.training.checkpoint.store import LocalStore

    store = LocalStore(folder)
    store.begin(folder_of(step))
    for name, data in files.items():
        store.write(folder_of(step), name, [data])
    store.commit(folder_of(step), b"{}")
    store.point(folder_of(step))


STEP_1, STEP_2 = {"model": content(600, 1)}, {"model": content(700, 2)}
explored = {}
for name, program in (
    ("pointer moved early", points_early),
    ("this course's LocalStore", saves_with_the_library),
):
    record = on_disk(program, 2, STEP_2, files=on_disk_after([(1, STEP_1)])).record
    explored[name] = record, crash_states(record).states


def draw_state(saver, state):
    from threeloops.training.checkpoint.crash import draw_crash

    record, states = explored[saver]
    return draw_crash(record, states[min(len(states) - 1, state * len(states) // 20)])


explore(draw_state, labels={"state": "state after a power cut"}, saver=list(explored), state=(0, 19, 1, 18))
debrief(
    "save_step",
    """The pointer is a commit: one small step that makes everything before it count. So everything before it must be on the
    disk first, content and names. The files may reach the disk in any order, because nobody reads them before the pointer leads there. Databases do the same with a log record.

    The explorer above moves through the states that a power cut may leave: a pointer that moves early names files that
    are empty, short or missing. The course's `LocalStore` writes a step under another name and renames its folder, so
    that each folder with a step's name is complete by itself and the pointer is only a hint.""",
    parts=("values", "states"),
)

# %% [markdown]
# ## 3 · Is it still what was written?
#
# Disks return wrong bytes at times, copies are cut short, and people remove files. A **checksum** is a short number
# computed from the bytes when they were written; if they change, it no longer fits. Here a step's folder has a
# **manifest**, `manifest.json`:
#
# - line 1 is JSON: `{"values": {...}, "files": {"model": {"size": 3, "sha256": "ba78…"}}}`,
# - line 2 is the SHA-256 of line 1, because the manifest may be damaged too.
#
# *Worked example.* The SHA-256 of `b"abc"` begins with ba78, and that of `b"abb"`, which differs in one bit, with 715e. If `model`
# now holds `b"abb"`, the step is not whole, and the next older one counts. If a bit of the manifest flips so that `"position": 640` becomes
# 641, the JSON is still fine and all files fit: only line 2 shows the damage.
#
# ### Exercise 3 (20 points)
#
# `newest_whole(folder) -> (step, values, files, skipped)` loads the newest whole checkpoint. It changes nothing in `folder`.
#
# - Checkpoints are folders `step-N`, here without leading zeros; a larger N is newer (`step-10` is newer than
#   `step-9`). Other names, such as `step-11.tmp` and `best-12`, are not checkpoints. A step's folder may also hold files that its
#   manifest does not list; leave them out.
# - A checkpoint is whole if it has a manifest, line 2 is the SHA-256 of line 1, and each listed file has the listed
#   size and SHA-256.
# - `files` are the contents by name, and `skipped` is a list of the names of the newer folders that were not whole,
#   newest first.
# - If none is whole, raise a `LookupError` that names each folder that was skipped, and no other.
#
# `digest(data)` is the SHA-256 as text, `manifest_of(values, files)` made the manifests.

# %% tags=["demo"]
predict(
    "noticed",
    "torch.save writes 64 numbers into a zip file, which holds a CRC-32 of each member. Flip one bit of these numbers, a different one in each of 512 copies, and call torch.load on each: how many of the 512 calls raise an error?",
)
print(manifest_of({"position": 640}, {"model": b"abc"}).decode())


# %% nbgrader={"grade": false, "grade_id": "newest_whole", "locked": false, "schema_version": 3, "solution": true, "task": false}
def newest_whole(folder: Path) -> tuple[int, dict, dict[str, bytes], list[str]]:
    """The newest checkpoint of which every byte is as it was written."""
    ### BEGIN SOLUTION
    steps = sorted((int(p.name[5:]) for p in folder.glob("step-*") if p.name[5:].isdigit()), reverse=True)
    skipped = []
    for step in steps:
        place = folder / f"step-{step}"
        try:
            line, sealed = (place / "manifest.json").read_bytes().split(b"\n")[:2]
            if digest(line) != sealed.decode():
                raise ValueError("the manifest is damaged")
            manifest = json.loads(line)
            files = {name: (place / name).read_bytes() for name in manifest["files"]}
            for name, entry in manifest["files"].items():
                if digest(files[name]) != entry["sha256"]:
                    raise ValueError(f"{name} is damaged")
            return step, manifest["values"], files, skipped
        except (OSError, ValueError):
            skipped.append(place.name)
    raise LookupError(f"no whole checkpoint; skipped: {', '.join(skipped) or 'nothing, there is none'}")
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "newest_whole_test_whole", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("newest_whole", "checkpoints that are whole", part="whole", hidden="other folders"):

    def finds(step, values, files, folder, case):
        (got,) = on_folders(newest_whole, [folder])
        check.true(not isinstance(got, Exception), f"{case}: it raised {type(got).__name__}: {got}")
        for what, part, expected in zip(
            ("step", "values", "files", "skipped"), got, (step, values, files, []), strict=True
        ):
            check.equal(part, expected, what=f"{what}, {case}")

    FIRST, SECOND = {"model": b"abc"}, {"model": b"abd", "optimizer": content(40, 1)}
    finds(3, {"position": 64}, FIRST, checkpoints((3, {"position": 64}, FIRST)), "one checkpoint, step-3")
    both = checkpoints((9, {"position": 64}, FIRST), (10, {"position": 128}, SECOND))
    finds(10, {"position": 128}, SECOND, both, "step-9 and step-10")
    finds(
        10,
        {"position": 128},
        SECOND,
        both | {"step-11.tmp": None, "best-12": None, "latest": b"step-9", "step-new": None},
        "step-9 and step-10, and other names",
    )
    finds(10, {"position": 128}, SECOND, both | {"step-10/note": b"?"}, "and a file that the manifest does not list")
    ### BEGIN HIDDEN TESTS
    many = [
        (step, {"lr": 0.1 / step, "name": "é"}, {f"rank-{r}": content(step, r) for r in range(3)})
        for step in (2, 30, 100, 99)
    ]
    finds(100, {"lr": 0.001, "name": "é"}, many[2][2], checkpoints(*many), "four checkpoints")
    finds(0, {}, {"a": b""}, checkpoints((0, {}, {"a": b""})), "step-0 with an empty file")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "newest_whole_test_damage", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("newest_whole", "damage of every kind", part="damage", hidden="other bits"):
    OLD_STEP, NEW_STEP = (
        (9, {"position": 64}, {"model": b"old"}),
        (10, {"position": 640}, {"model": content(30, 1), "log": b"abc"}),
    )

    def falls_back(cases):
        """`cases` are (what was done to step-10, the folder afterwards)."""
        answers = on_folders(newest_whole, [folder for _, folder in cases])
        for (case, _), got in zip(cases, answers, strict=True):
            check.true(not isinstance(got, Exception), f"{case}: it raised {type(got).__name__}: {got}")
            expected = [*OLD_STEP, ["step-10"]]
            check.equal([got[0], got[3]], [expected[0], expected[3]], what=f"step and skipped, {case}")
            check.equal([got[1], got[2]], [expected[1], expected[2]], what=f"values and files, {case}")

    whole = checkpoints(OLD_STEP, NEW_STEP)
    FILES = ["step-10/model", "step-10/log", "step-10/manifest.json"]

    def flipped(bit_of):
        """One bit of each byte of step-10, in turn. The line ends of the manifest are left out."""
        for path in FILES:
            for at, byte in enumerate(whole[path]):
                bit = bit_of(at)
                changed = whole[path][:at] + bytes([byte ^ 1 << bit]) + whole[path][at + 1 :]
                if byte != ord("\n"):
                    yield f"bit {bit} of byte {at} of {path} flipped", whole | {path: changed}

    def without(path):
        return {name: data for name, data in whole.items() if name != path}

    def several(damaged, found, skipped):
        """Steps 1 to 4, of which some are damaged."""
        folder = checkpoints(*((step, {}, {"a": bytes([step])}) for step in (1, 2, 3, 4)))
        (got,) = on_folders(newest_whole, [folder | {f"step-{step}/a": b"?" for step in damaged}])
        case = f"steps 1 to 4, of which {damaged} are damaged"
        check.true(not isinstance(got, Exception), f"{case}: it raised {type(got).__name__}: {got}")
        check.equal([got[0], list(got[3])], [found, skipped], what=f"step and skipped, {case}")

    forged = whole[FILES[2]].replace(b'"position": 640', b'"position": 641')
    falls_back([("position 640 of the manifest has become 641", whole | {FILES[2]: forged})])
    falls_back([(f"{path} is gone", without(path)) for path in FILES])
    falls_back([(f"{path} is empty", whole | {path: b""}) for path in FILES])
    lines = whole["step-10/manifest.json"].split(b"\n")
    cut = [len(lines[0]) // 2, len(lines[0]), len(lines[0]) + 1, len(lines[0]) + 30]
    falls_back([(f"the manifest has only its first {n} bytes", whole | {FILES[2]: whole[FILES[2]][:n]}) for n in cut])
    falls_back([(f"{path} is one byte longer", whole | {path: whole[path] + b"\0"}) for path in FILES[:2]])
    falls_back(list(flipped(lambda at: at % 8)))
    several([4, 3, 1], 2, ["step-4", "step-3"])

    def calls_twice(folder):
        newest_whole(folder)
        return newest_whole(folder)

    (again,) = on_folders(calls_twice, [whole | {"step-10/log": b"abb"}])
    check.true(not isinstance(again, Exception), f"one of two calls raised {type(again).__name__}: {again}")
    what = "step and skipped of a second call: the first should change nothing in the folder"
    check.equal([again[0], list(again[3])], [9, ["step-10"]], what=what)
    ### BEGIN HIDDEN TESTS
    falls_back(list(flipped(lambda at: (at + 3) % 8)))
    falls_back([(f"{path} has only {n} bytes", whole | {path: whole[path][:n]}) for path in FILES[:2] for n in (1, 2)])
    zeros = [(f"{path} is zeros", whole | {path: bytes(len(whole[path]))}) for path in FILES]
    several([2, 3, 4], 1, ["step-4", "step-3", "step-2"])
    falls_back([("log has a SHA-256 that begins with ba78, too", whole | {"step-10/log": b"are"})])
    falls_back([*zeros, ("step-10 is empty", {name: data for name, data in whole.items() if "10/" not in name})])
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "newest_whole_test_none", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("newest_whole", "nothing whole", part="none", hidden="other folders"):

    def finds_nothing(folder, *names):
        (got,) = on_folders(newest_whole, [folder])
        case = f"a folder with {sorted(folder)}, where {', '.join(names) or 'nothing'} is damaged"
        raised = f"{type(got).__name__}: {got}" if isinstance(got, Exception) else "nothing"
        check.true(isinstance(got, LookupError), f"{case}: it raised {raised}: expected a LookupError")
        missing = [name for name in names if name not in str(got)]
        check.true(not missing, f"{case}: the message {str(got)!r} does not name {missing}")
        others = sorted(set(re.findall(r"step-\d+|best-\d+", str(got))) - set(names))
        check.true(not others, f"{case}: the message {str(got)!r} names {others}, which were not skipped")

    def finds_something(folder):
        (got,) = on_folders(newest_whole, [folder])
        check.true(not isinstance(got, Exception), f"a folder with a whole step: it raised {type(got).__name__}: {got}")

    # the damage is plain here, so that a kind of damage that is not noticed costs the part above alone
    damaged = checkpoints((3, {}, {"a": b"1"}), (4, {}, {"a": b"2"})) | {"step-3/a": b"??", "step-4/a": b"??"}
    finds_nothing(damaged, "step-4", "step-3")
    finds_nothing(checkpoints((7, {}, {"a": b"1"})) | {"step-7/a": b"??", "latest": b"step-7"}, "step-7")
    finds_nothing({})
    finds_nothing(damaged | {"best-4": None}, "step-4", "step-3")  # other names are not skipped
    finds_something(checkpoints((3, {}, {"a": b"1"})))
    ### BEGIN HIDDEN TESTS
    finds_something(checkpoints((5, {}, {"a": b"1"}), (6, {}, {"b": b"2"})) | {"step-6/b": b"??"})
    damaged = checkpoints((12, {}, {"a": b"1"}), (2, {}, {"b": b"12"})) | {"step-12/a": b"123", "step-2/b": b"1"}
    finds_nothing(damaged, "step-12", "step-2")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "newest_whole",
    "A checkpoint's name begins with `step-`, and the rest is a number: `name[5:].isdigit()`. Sort by `int(name[5:])`, and not by the name.",
    "Check line 2 before you believe anything in line 1. After that, only files can be missing or wrong.",
    "Put `try … except (OSError, ValueError)` around the reading of one step, and note its name in `skipped`.",
)


def flips_noticed():
    """Count how many of 512 flips of one bit in a file of torch.save each check notices."""
    import zipfile

    numbers, file = torch.arange(64.0), io.BytesIO()
    torch.save({"weight": numbers}, file)
    whole = file.getvalue()
    begin, noticed = whole.index(numbers.numpy().tobytes()), {"torch.load": 0, "the zip file's CRC-32": 0, "SHA-256": 0}
    for at in range(begin, begin + 256):
        for bit in (1, 6):
            damaged = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
            try:
                torch.load(io.BytesIO(damaged), weights_only=True)
            except Exception:
                noticed["torch.load"] += 1
            noticed["the zip file's CRC-32"] += zipfile.ZipFile(io.BytesIO(damaged)).testzip() is not None
            noticed["SHA-256"] += digest(damaged) != digest(whole)
    return noticed


noticed = flips_noticed()
with reveal("noticed"):
    show.against_prediction("noticed", noticed["torch.load"], source="512 files loaded here")
    plot, axes = figure(width=8.5, height=1.9)
    bars = axes.barh(list(noticed), list(noticed.values()), color=[palette.vermillion, palette.sky, palette.green])
    axes.bar_label(bars, labels=[f"{count} of 512" for count in noticed.values()], padding=4)
    axes.set(xlim=(0, 600), xlabel="flipped bits that are noticed")
    axes.invert_yaxis()
    show.figure(plot, "who notices a flipped bit: torch.load does not compare the file's own CRC-32")
debrief(
    "newest_whole",
    """A save that survives power cuts is half of the promise. The other half is that a load does not believe what it reads.
    torch.save writes a zip file with a CRC-32 of each member, and torch.load does not compare it, so a flipped bit becomes a
    weight.

    The manifest seals itself, and then it seals the files. The order matters: a check of the files against a manifest that
    nobody checked accepts whatever the manifest says. SHA-256 costs time: a core hashes very roughly 0.5 to 2 GB/s, less
    than a fast SSD reads. A CRC-32 costs less and misses one accident in four billion; SHA-256 also identifies content,
    which incremental saves need (dives).

    To fall back silently would hide a dying disk. So say what was skipped, and keep more than one checkpoint.""",
    parts=("whole", "damage", "none"),
)

# %% [markdown]
# ## 4 · Save while training goes on
#
# Writing 100 GB takes a minute, and the GPUs would wait. An **asynchronous** save copies the state into memory of its own
# (**staging**, on GPUs from device memory into pinned host memory). Training waits only for that copy, and a thread writes the
# copy.
#
# *Worked example.* Copying takes 1 s and writing 10 s. The saves begin at 0 s and at 6 s. Training waits from 0 to 1
# s. At 6 s the first copy is still being written, and there is one copy only, so the second save waits until 11 s,
# copies until 12 s, and returns. The stalls are 1 s and 6 s. If you save faster than the disk writes, each save
# blocks until the disk has caught up. That is **back-pressure**. Without it the copies would pile up in memory.
#
# ### Exercise 4 (20 points)
#
# `BackgroundSaver(write)` has two methods. How the thread starts is given; write the rest.
#
# - `save(step, state)` copies `state`, a dictionary of CPU tensors, and returns. Some are parameters: `detach()` them, so
#   that the copies have no gradients. `write(step, copy)` runs in a thread: one write at a time, in order. If the
#   previous write is not done, `save` waits for it *before it copies*, because there is one copy only: all saves copy
#   into the tensors that the first one made (names, types and shapes do not change).
# - `wait()` returns when the last write is done.
# - If `write` raised any exception, the next `save` or `wait` raises an error that contains its message, once. A `save`
#   that raises saves nothing; the one after it works again.

# %% tags=["demo"]
myth("ft-3")
predict(
    "stall",
    "The library saves 64 MiB asynchronously, and no earlier save is under way. For how long is training blocked, counted in memory copies of the state?",
    unit="copies",
)


# %% nbgrader={"grade": false, "grade_id": "BackgroundSaver", "locked": false, "schema_version": 3, "solution": true, "task": false}
class BackgroundSaver:
    """Saves a copy of a state while training goes on."""

    def __init__(self, write):
        """`write(step, state)` writes a state, and takes long."""
        self.write = write
        self.copy, self.thread, self.error = {}, None, None

    def save(self, step: int, state: dict[str, torch.Tensor]) -> None:
        """Copy, and write the copy in the background."""
        ### BEGIN SOLUTION
        self.wait()
        for name, tensor in state.items():
            if name not in self.copy:
                self.copy[name] = torch.empty_like(tensor)
            self.copy[name].copy_(tensor.detach())
        ### END SOLUTION
        self.thread = threading.Thread(target=self._run, args=(step,))
        self.thread.start()

    def wait(self) -> None:
        """Return when everything is written."""
        ### BEGIN SOLUTION
        if self.thread is not None:
            self.thread.join()
        error, self.thread, self.error = self.error, None, None
        if error is not None:
            raise error
        ### END SOLUTION

    def _run(self, step: int) -> None:
        """Runs in the thread: write the copy, and keep the error for `wait`."""
        ### BEGIN SOLUTION
        try:
            self.write(step, self.copy)
        except Exception as error:
            self.error = error
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "BackgroundSaver_test_copy", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("BackgroundSaver", "what is written", part="copy", hidden="other states"):

    def writes_what_was_saved(rows):
        written, log, attached = trains_on(BackgroundSaver, rows)
        case = f"{rows} rows, where training changed all tensors in place after save returned"
        check.true(type(written) is dict, f"{case}: step 1 was not written before wait returned; what happened: {log}")
        whole = torch.arange(6.0 * rows).reshape(rows, 6) / 3
        expected = {"weight": whole, "column": whole[:, 2], "step": torch.tensor(7)}
        check.equal(sorted(written), sorted(expected), what=f"names that were written, {case}")
        for name, tensor in expected.items():
            late = torch.is_tensor(written[name]) and torch.equal(written[name], tensor * -2)
            cause = "these are the values after training went on: write a copy made by save" if late else ""
            check.equal(written[name], tensor, what=f"{name} as it was written, {case}", hint=cause)
            check.dtype(written[name], tensor.dtype, what=f"{name} as it was written")
        check.equal(attached, [], what=f"copies that require gradients, {case}", hint="copy `tensor.detach()`")

    def uses_one_copy(count, size):
        places, firsts = saves_often(BackgroundSaver, count, size)
        check.equal(firsts, [n + 0.5 for n in range(count)], what=f"a[0] in each of {count} writes")
        for name, number in places.items():
            again = "use the tensors of the first save again, with copy_"
            check.equal(number, 1, what=f"places in memory of the copy of {name}, in {count} saves", hint=again)

    writes_what_was_saved(3)
    uses_one_copy(3, 1000)
    ### BEGIN HIDDEN TESTS
    writes_what_was_saved(50)
    uses_one_copy(5, 100_000)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "BackgroundSaver_test_order", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("BackgroundSaver", "who waits for whom", part="order", hidden="another size"):

    def waits(size, held):
        written, log = saves_again(BackgroundSaver, size, held)
        happened = f"what happened: {', '.join(log)}"

        def before(first, second, why):
            check.true(first in log and second in log, f"“{first}” or “{second}” did not happen; {happened}")
            check.true(log.index(first) < log.index(second), f"{why}; {happened}")

        before("save 1 returned", "write 1 ends", "save 1 returned only after its write")
        before("write 1 ends", "write 2 begins", "two writes ran at the same time")
        before("write 1 ends", "save 2 returned", "save 2 did not wait for write 1, which still needs the copy")
        before("save 2 returned", "write 2 ends", "save 2 returned only after its write")
        before("write 2 ends", "wait returned", "wait returned before the last write was done")
        late = "write 1 wrote what the state held after save 1: it got no copy, or save 2 overwrote the copy too early"
        check.equal(written.get(1), [1.0], what=f"values in write 1 ({happened})", hint=late if written.get(1) else "")
        early = "save 2 had copied before write 1 was done, so there were two copies" if written.get(2) == [2.0] else ""
        what = f"values in write 2, which were 2 before save 2 waited and 3 when it might copy ({happened})"
        check.equal(written.get(2), [3.0], what=what, hint=early)

    waits(10, 0.3)
    ### BEGIN HIDDEN TESTS
    waits(10_000, 1.3)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "BackgroundSaver_test_errors", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("BackgroundSaver", "writes that fail", part="errors", hidden="other orders"):

    def tells(calls, fails, expected, steps):
        """`calls` are steps to save, or None for wait. `expected` are the calls that raise, each with the failed step. A
        write that fails raises an OSError if its step is odd, and a RuntimeError if it is even."""
        said, begun = fails_once(BackgroundSaver, calls, fails)
        names = ["wait()" if step is None else f"save({step}, …)" for step in calls]
        case = f"calls {', '.join(names)}, where write {' and '.join(map(str, fails))} fails"
        for place, (name, words) in enumerate(zip(names, said, strict=True)):
            step = expected.get(place)
            wanted = f"no space for step {step}"
            if step is None:
                check.equal(words, "", what=f"error of call {place}, {name} ({case})")
            else:
                seen = f"raised {words!r}" if words else "raised nothing"
                check.true(wanted in words, f"call {place}, {name}, {seen}: expected an error with {wanted!r} ({case})")
        check.equal(begun, [str(step) for step in steps], what=f"steps whose write began ({case})")

    tells([1, None, None], (1,), {1: 1}, [1])
    tells([1, 2, 3, None], (1,), {1: 1}, [1, 3])
    tells([2, None, 3, None], (2,), {1: 2}, [2, 3])
    ### BEGIN HIDDEN TESTS
    tells([1, 2, None, 4, None, None], (2, 4), {2: 2, 4: 4}, [1, 2, 4])
    tells([None, 1, None, 3, 5, 5, None], (3,), {4: 3}, [1, 3, 5])
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "BackgroundSaver",
    "`save` begins with what `wait` does: join the thread, if there is one, and raise what it left.",
    "Make the copy once, in the first `save`, with `torch.empty_like`; later use `copy_`.",
    "An exception in a thread reaches nobody. Catch it there, keep it in the object, and raise it in `wait`.",
)
import tempfile
import time


def stalls(saves=3):
    """The stalls of asynchronous saves, and the duration of a whole one, in copies of the state."""
    from threeloops.training.checkpoint import Checkpointer, LocalStore

    state = {f"layer {n}": torch.randn(1 << 20) for n in range(16)}
    buffer = {name: tensor.clone() for name, tensor in state.items()}
    copies, blocked, whole = [], [], []
    with tempfile.TemporaryDirectory() as place:
        checkpointer = Checkpointer(LocalStore(place), full_every=1, state=state)
        for step in range(1, saves + 1):
            started = time.perf_counter()
            for name, tensor in state.items():
                buffer[name].numpy()[:] = tensor.numpy()
            copies.append(time.perf_counter() - started)
            started = time.perf_counter()
            checkpointer.save_async(step, state)
            blocked.append(time.perf_counter() - started)
            checkpointer.wait()
            whole.append(time.perf_counter() - started)
    copy = min(copies)
    return min(blocked) / copy, min(whole) / copy, 1e3 * copy


blocked, whole, copy_ms = stalls()
show.against_prediction("stall", round(blocked, 1), unit="copies", source="measured here: the shortest of three")
audit(
    "ft-3",
    round(blocked, 1),
    f"copies of the state ({blocked * copy_ms:.0f} ms); until it is on the disk it takes {whole:.0f} copies",
    "CPU",
    "corrected",
    how="64 MiB in 16 tensors on this machine's disk, the shortest of three. Training is blocked while the state is copied, and in addition for as long as the save before is still being written. The copy cannot be left out, because what is saved must not change while it is written",
)
debrief(
    "BackgroundSaver",
    """The stall is a copy, if the disk keeps up. The copy cannot be left out if tensors are changed in place: the
    optimizer's next step changes the weights, and a write that reads them then saves a mixture of two steps. A mixture
    has valid checksums, so no later check finds it.

    Memory that is touched for the first time costs page faults, several times the copy itself, and pinned memory is slow
    to allocate. So the buffer is made once. On GPUs the copy can run over PCIe on a stream of its own, beside the next
    forward and backward pass, and has to be finished before `optimizer.step()`.

    An error in the background is the worst kind: the run goes on for a week, and no checkpoint was ever written. So
    the next call raises.""",
    parts=("copy", "order", "errors"),
)

# %% [markdown]
# ## 5 · Everything that the next step depends on
#
# A run that was resumed should continue **bit for bit**, as if nothing had happened. Otherwise you cannot tell a fault of the
# restart from a fault of the run. The state is more than weights:
#
# | part | where | the same on all ranks? |
# |---|---|---|
# | model (also buffers, which each step takes from rank 0), optimizer, scheduler, loss scale | `state_dict()`, `load_state_dict()` | yes |
# | torch's random numbers (dropout) | `torch.get_rng_state()`, `torch.set_rng_state(tensor)` | no |
# | Python's random numbers (augmentation) | `random.getstate()`, `random.setstate(state)` | no |
# | the data: order of the epoch, position in it, and the generator of the next orders | `run.samples` | no |
#
# *Worked example.* An epoch has the order [3, 0, 2, 1, …], and the position is 4. If the position is lost, the samples 3, 0, 2 and 1 are
# seen twice in this epoch. If the order is lost, some samples are seen twice and others not at all, and no loss curve shows it.
#
# ### Exercise 5 (18 points)
#
# Each rank has a `run` with the attributes `model`, `optimizer`, `scheduler`, `scaler` and `samples`; the last has `order`
# (a list), `position` and `generator` (with `get_state()` and `set_state(tensor)`).
#
# - `capture(run)` is called on every rank. Its result on rank 0 is written with `torch.save`, and must hold what *all*
#   ranks need. The result must not change when training goes on.
# - `restore(run, saved)` is called on every rank of a new program, with that file loaded by
#   `torch.load(weights_only=True)`. Then each rank continues bit for bit. Neither function reads samples.
#
# The lab's tuples `SHARED` and `OWN` list what to save: `SHARED = ("model", "optimizer", "scheduler", "scaler")` and
# `OWN = ("torch", "python", "order", "position", "generator")`.
# Two lines of `capture` are given: put what differs between ranks into `own`, and after these lines the list `ranks` holds
# the `own` of every rank.

# %% tags=["demo"]
myth("ft-4")
predict(
    "resume",
    "Two ranks resume from a dictionary with the model, the optimizer, the scheduler, the epoch and rank 0's torch random "
    "state. Where does it first differ from the run that was not interrupted?",
    options=("nothing", "the first step", "only after the end of the epoch"),
)


# %% nbgrader={"grade": false, "grade_id": "capture", "locked": false, "schema_version": 3, "solution": true, "task": false}
def capture(run) -> dict:
    """Return, on rank 0, all that the ranks need to continue."""
    ### BEGIN SOLUTION
    import copy

    samples = run.samples
    own = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "order": list(samples.order),
        "position": samples.position,
        "generator": samples.generator.get_state(),
    }
    ### END SOLUTION
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)  # now `ranks` lists the `own` of every rank
    ### BEGIN SOLUTION
    parts = {name: getattr(run, name).state_dict() for name in SHARED}
    return copy.deepcopy({"parts": parts, "ranks": ranks})
    ### END SOLUTION


def restore(run, saved: dict) -> None:
    """Continue where `capture` was called."""
    ### BEGIN SOLUTION
    for name, state in saved["parts"].items():
        getattr(run, name).load_state_dict(state)
    own = saved["ranks"][dist.get_rank()]
    run.samples.order, run.samples.position = own["order"], own["position"]
    run.samples.generator.set_state(own["generator"])
    torch.set_rng_state(own["torch"])
    random.setstate(own["python"])
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "capture_test_trainer", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check(
    "capture", "model, optimizer, scheduler, loss scale", part="trainer", hidden="other numbers of steps and ranks"
):

    def trains_alike(ranks, before, after, seed=1):
        compared = continued(capture, restore, ranks, before, after, False, seed)
        for rank, (expected, found, model, other) in enumerate(compared):
            case = f"rank {rank} of {ranks}, resumed after {before} steps, always the same batch"
            losses = [each["loss"] for each in expected]
            check.equal([each["loss"] for each in found], losses, what=f"losses, {case}")
            for name, tensor in model.items():
                check.equal(other[name], tensor, what=f"{name} after {after} more steps, {case}")

    trains_alike(2, 3, 5)
    ### BEGIN HIDDEN TESTS
    trains_alike(3, 8, 6, seed=2236067983)
    trains_alike(1, 7, 6, seed=2449489746)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "capture_test_random", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("capture", "random numbers of every rank", part="random", hidden="other numbers of steps and ranks"):

    def draws_alike(ranks, before, after, seed=1):
        compared = continued(capture, restore, ranks, before, after, True, seed)
        for rank, (expected, found, _, _) in enumerate(compared):
            for step in range(after):
                first = compared[0][0][step]["drawn"]
                for name, part in (("noise (Python's numbers)", slice(1)), ("dropout mask (torch's)", slice(1, None))):
                    got = found[step]["drawn"][part]
                    copied = rank and got == first[part]
                    cause = "these are the numbers of rank 0: each rank has random states of its own" if copied else ""
                    what = f"{name}, step {step + 1} after resuming, rank {rank} of {ranks}"
                    check.equal(got, expected[step]["drawn"][part], what=what, hint=cause)

    draws_alike(2, 4, 3)
    ### BEGIN HIDDEN TESTS
    draws_alike(3, 7, 5, seed=2645751315)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "capture_test_data", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("capture", "the samples of every rank", part="data", hidden="other numbers of steps and ranks"):

    def reads_alike(ranks, before, after, seed=1):
        compared = continued(capture, restore, ranks, before, after, True, seed)
        for rank, (expected, found, _, _) in enumerate(compared):
            got, wanted = ([each["samples"] for each in steps] for steps in (found, expected))
            of_first = rank and got == [each["samples"] for each in compared[0][0]]
            cause = "these are the samples of rank 0" if of_first else ""
            what = f"samples of the next {after} steps, rank {rank} of {ranks}, resumed after {before} steps"
            check.equal(got, wanted, what=what, hint=cause)

    reads_alike(2, 3, 6)
    reads_alike(2, 2, 1)
    ### BEGIN HIDDEN TESTS
    reads_alike(3, 5, 8, seed=2828427129)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "capture",
    "Four parts have `state_dict()`. It returns the live tensors, so copy them: `copy.deepcopy`.",
    "Make `own` a dictionary of what `OWN` lists, and return a dictionary with `ranks` and the shared parts. In `restore`, "
    '`saved["ranks"][dist.get_rank()]` is yours.',
    "Of `samples` save three things: a list, a number, and the generator's state.",
)


def claimed_capture(run):
    parts = {name: getattr(run, name).state_dict() for name in ("model", "optimizer", "scheduler")}
    return {"parts": parts, "random": torch.get_rng_state()}


def claimed_restore(run, saved):
    for name, state in saved["parts"].items():
        getattr(run, name).load_state_dict(state)
    torch.set_rng_state(saved["random"])


compared = continued(claimed_capture, claimed_restore, 2, 4, 6, True)
rows = [
    (
        step + 1,
        *(f"{each[which][step]['loss']:.4f}" for each in compared for which in (0, 1)),
        "yes" if all(each[0][step]["drawn"] == each[1][step]["drawn"] for each in compared) else "no",
        "yes" if all(each[0][step]["samples"] == each[1][step]["samples"] for each in compared) else "no",
    )
    for step in range(6)
]
with reveal("resume"):
    show.against_prediction("resume", "the first step", source="two ranks on the virtual cluster")
    show.table(
        rows,
        header=("step", "rank 0, loss", "resumed", "rank 1, loss", "resumed", "same random numbers", "same samples"),
        caption="Resumed from model, optimizer, scheduler and rank 0's torch random state, beside the run itself",
    )
audit(
    "ft-4",
    1,
    "is the first step that differs",
    "CPU",
    "corrected",
    how="two ranks with dropout, augmentation and loss scaling, resumed in the middle of an epoch from the dictionary of the claim (this run has no epoch number to save). Rank 1 draws rank 0's dropout masks, both read other samples and draw other noise, and the loss scale begins anew, so it may skip other steps than the run itself",
)
debrief(
    "capture",
    """Ask of every variable that outlives a step: does the next step read it? Then it is state. Batch norm's running
    means are (buffers, in `state_dict`; if no step synchronizes them, each rank has its own), and so are the loss scale,
    Python's generator behind an augmentation, the order of the shuffled epoch, and also NumPy's generator and each GPU's,
    if something draws from them.

    State that differs between ranks is the part that people forget, because a run on one GPU resumes well without it. A
    check takes a minute: train 2n steps; train n, save, load in a new process, train n; compare bit for bit (on GPUs with
    deterministic kernels).

    If the number of ranks changes, there is no bit-for-bit answer any more. Weights and optimizer states can be cut
    anew (dives); new ranks need random states of their own.""",
    parts=("trainer", "random", "data"),
)

# %% [markdown]
# ## 6 · Where do the fsyncs go?
#
# Each fsync makes a save wait for the disk, about a millisecond on an SSD and ten on a hard disk. So real savers leave some
# out, often the wrong ones. Below a saver makes the folder `step-2.tmp`, writes `model` into it and `notes` beside it, and
# renames the folder to `step-2`. Nobody loads `notes`. Click the fsyncs that the save needs: whatever a power cut leaves, the old
# or the new `model` can be loaded, and after the last operation only the new one. Which is the smallest set?

# %% tags=["demo"] jupyter={"source_hidden": true}
import ipywidgets

predict("clicks", "There are six places for an fsync. How many does this save need?")


def draw_clicked(**clicked):
    """Draw the states that a power cut may leave after the last operation, with the fsyncs that are clicked."""
    syncs = [PLACES[name] for name, on in clicked.items() if on]
    record = with_syncs(SAVE, BEFORE, syncs)
    report = load_all_states(record, load_newest)
    fewer = ([other for other in syncs if other != each] for each in syncs)
    if report.bad:
        verdict = f"{len(report.bad)} of {report.states} states are bad"
    elif any(load_all_states(with_syncs(SAVE, BEFORE, others), load_newest).ok for others in fewer):
        verdict = "safe, but not all are needed"
    else:
        verdict = "safe"
    moments = power_cuts(record, load_newest, {"model": b"old"}, {"model": content(700, 3)})
    return draw_power_cut(moments, len(moments) - 1, f"{len(syncs)} fsync{'s' * (len(syncs) != 1)}: {verdict}")


explore(
    draw_clicked,
    labels={name: f"after operation {at}: fsync of {path}" for name, (at, path) in PLACES.items()},
    **{name: ipywidgets.Checkbox(name == "model") for name in PLACES},
)

# %% tags=["demo"] jupyter={"source_hidden": true}
with reveal("clicks"):
    show.against_prediction("clicks", 3, source="all 64 sets of fsyncs, enumerated")
    print("Content: (2, step-2.tmp/model). The name `model`: (2, step-2.tmp). The rename: (5, .).")
    print("The mkdir needs none of its own, because the rename cannot be on the disk without it.")
    show.figure(
        draw_clicked(**{name: name in ("model", "folder", "renamed") for name in PLACES}),
        "with these three, every state after the save holds the new model",
    )

# %% [markdown]
# ## 7 · Killed, and bit for bit back
#
# The next cell trains two ranks. After steps 2 and 4 your `capture` collects the state, your `BackgroundSaver` copies and writes
# it with your `save_step`, and your `replace_file` notes in `status` which step is safe. Then the power fails, in every way that
# the record permits. Each time your `newest_whole` loads what is left, and it must be no older than `status` says.
# Finally your `restore` continues from step 2 and from step 4. Are the losses those of the run that was never
# interrupted?

# %% tags=["demo"] jupyter={"source_hidden": true}
ROWS = 2 * torch.rand(10, 4, generator=torch.Generator().manual_seed(1)) - 1


def capture_twice(capture):
    """The states after steps 2 and 4, as bytes, and the losses of all 8 steps."""
    run, saved, losses = Run(1, dist.get_rank()), {}, []
    for step in range(1, 9):
        losses.append(run.step()["loss"])
        if step in (2, 4):
            file = io.BytesIO()
            torch.save(capture(run), file)
            saved[step] = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    return saved, losses


def continue_from(restore, file, steps):
    """The losses of a new program after `restore`."""
    run = Run(5, dist.get_rank())
    restore(run, torch.load(io.BytesIO(file), weights_only=True))
    return [run.step()["loss"] for _ in range(steps)]


def saves_in_background(folder, saved, parts, states):
    def write(step, copy):
        data = copy["run"][: int(copy["size"])].numpy().tobytes()
        files = {"run": data}
        parts.save_step(folder, step, files | {"manifest.json": manifest_of({"step": step}, files)})

    saver, most = parts.BackgroundSaver(write), max(len(state) for state in states.values())
    for step, state in states.items():
        padded = torch.zeros(most, dtype=torch.uint8)
        padded[: len(state)] = state
        saver.save(step, {"run": padded, "size": torch.tensor(len(state))})
        saver.wait()
        parts.replace_file(folder / "status", str(step).encode())


def load_and_compare(parts, folder):
    """The step that is loaded, and the one that `status` names."""
    try:
        step, _, files, _ = parts.newest_whole(folder)
    except LookupError:
        step = 0
    status = folder / "status"
    return step, int(status.read_text()) if status.exists() else 0


if parts := together("replace_file", "save_step", "newest_whole", "BackgroundSaver", "capture"):
    serve = {"rows": lambda rank, numbers: ROWS[numbers]}
    trained = on_cluster(Cluster(2), capture_twice, parts.capture, served=serve)
    states, losses = trained.results[0][0], [each[1] for each in trained.results]
    recorded = on_disk(saves_in_background, parts, states)
    if recorded.error is not None:
        raise recorded.error
    found = [
        loaded(lambda folder: load_and_compare(parts, folder), state.files)
        for state in crash_states(recorded.record, most=40).states
    ]
    show.table(
        [(f"step {step}" if step else "nothing yet", sum(got == step for got, _ in found)) for step in (0, 2, 4)]
        + [("older than `status` said", sum(got < status for got, status in found))],
        header=("newest_whole found", "states"),
        caption=f"{len(found)} states that a power cut may leave, from the first operation to the last",
    )
    resumptions = {
        step: on_cluster(Cluster(2), continue_from, parts.restore, state.numpy().tobytes(), 8 - step, served=serve)
        for step, state in states.items()
    }
    plot, axes = figure(width=8.5, height=2.7)
    axes.plot(range(1, 9), losses[0], color=palette.sky, lw=5, alpha=0.7)
    axes.text(8.1, losses[0][-1], "never interrupted", va="center")
    for step, shade in ((2, palette.orange), (4, palette.green)):
        axes.plot(range(step + 1, 9), resumptions[step].results[0], "o", ms=9 if step == 2 else 4, color=shade)
        first = resumptions[step].results[0][0]
        axes.text(step + 1.25, first, f"resumed from step {step}", va="center", color=palette.ink)
    axes.set(xlim=(0.8, 9.9), xlabel="step", ylabel="loss on rank 0")
    show.figure(plot, "losses of the run, and of two runs resumed from its checkpoints")
    same = all(run.results[rank] == losses[rank][step:] for step, run in resumptions.items() for rank in range(2))
    print("losses equal bit for bit, on both ranks and from both checkpoints:", same)

# %% [markdown]
# ## In practice
#
# `torch.distributed.checkpoint` (DCP) saves sharded states and loads them on other numbers of ranks; `async_save`
# stages them, in pinned memory if asked (Megatron-Core 0.19: `--async-save`; TorchTitan 0.3: `--checkpoint.async_mode`).
# torchdata's `StatefulDataLoader` keeps its position in its `state_dict()`.
# Frameworks add the pointer: Megatron-LM's `latest_checkpointed_iteration.txt`, DeepSpeed's `latest`. The last cell
# saves a small state over another one with four savers, as the course's benchmarks do, and loads states that a power
# cut may leave: the extreme ones and a sample of the others.
#
# ## What to remember
#
# - Content is made durable by an fsync of the file, a name by one of its folder, and a rename is one step.
# - Prepare everything, sync it, publish it with one rename, sync that. Only then say "saved".
# - Load only what its checksums confirm, and say what was skipped.
# - An asynchronous save blocks training for one copy, and before that until the previous save is written.
# - State is whatever the next step reads, on every rank.
#
# The deep dives (`13_durable_checkpoints_dives.ipynb`) find the fewest fsyncs of a save, save on 4 ranks and load on 2, write only what has changed, decide what
# to keep, and leave the file system for an object store.
#
# ## Reflection
#
# Your team's saver writes `model.pt` with torch.save to a network file system, every hour, and has never lost anything. What do you change
# first, what do you test, and what would you measure before you change more? A paragraph is enough.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# "Never lost anything" says that no power cut came at a bad moment. Saving in place is the worst of it, because a
# crash in the middle destroys the old file too, so first I write a new file, sync it, rename it, sync its folder, and
# keep the last two. Then I add checksums that loads verify, and test a resume bit for bit on two ranks. I record the
# saver and enumerate its crash states, and I read what the network file system promises about fsync and rename.
# Before I make saves asynchronous or more frequent I measure how long training is blocked and how long a save takes,
# because these and the work that a failure loses decide how often to save.

# %% tags=["demo"] jupyter={"source_hidden": true}
import os

STATES = [{name: torch.full((300,), float(step)) for name in ("weight", "momentum")} for step in (1, 2)]


def torch_save_in_place(folder, saved, state):
    with open(folder / "model.pt", "wb") as file:
        torch.save(state, file)


def torch_save_renamed(folder, saved, state):
    with open(folder / "model.pt.tmp", "wb") as file:
        torch.save(state, file)
    os.replace(folder / "model.pt.tmp", folder / "model.pt")


def dcp_in_place(folder, saved, state):
    dcp.save(state, checkpoint_id=folder / "checkpoint", no_dist=True)


def with_the_library(folder, saved, state):
    from threeloops.training.checkpoint import Checkpointer, LocalStore

    Checkpointer(LocalStore(folder)).save(int(state["weight"][0]), state)


def load_dcp(folder):
    state = {name: torch.zeros(300) for name in ("weight", "momentum")}
    dcp.load(state, checkpoint_id=folder / "checkpoint", no_dist=True)
    return state


def load_library(folder):
    from threeloops.training.checkpoint import Checkpointer, LocalStore

    return Checkpointer(LocalStore(folder)).load().state


def load_pt(folder):
    return torch.load(folder / "model.pt", weights_only=True)


import logging
import warnings

import torch.distributed.checkpoint as dcp
from threeloops.training.checkpoint.crash import EXT4, POSIX

rows = []
logging.disable(logging.CRITICAL)  # DCP logs every state that it cannot load
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name, program, load in (
        ("torch.save, in place", torch_save_in_place, load_pt),
        ("torch.save, os.replace, no fsync", torch_save_renamed, load_pt),
        ("torch DCP, in place", dcp_in_place, load_dcp),
        ("this course's Checkpointer", with_the_library, load_library),
    ):
        start = files_after(on_disk(program, STATES[0]).record)
        record = on_disk(program, STATES[1], files=start).record
        for rules in (POSIX, EXT4):
            report = load_all_states(record, load, rules, most=60)
            wrong = sum(found.verdict == "broken" and "raised" not in found.what for found in report.bad)
            raised = report.count("broken") - wrong
            rows.append((name, rules.name, report.states, raised, wrong, report.count("lost")))
logging.disable(logging.NOTSET)
show.table(
    rows,
    header=(
        "saver",
        "rules",
        "states tried",
        "load raises an error",
        "loads wrong numbers",
        "save lost after it had returned",
    ),
    caption="A state of 2.4 kB saved over another one. Of the states that a power cut may leave: the extreme ones and a sample",
)
term("fsync")
calibration()
