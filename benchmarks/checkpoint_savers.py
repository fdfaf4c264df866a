"""Benchmark of savers against power cuts: `python -m benchmarks checkpoint --savers` writes docs/power_cuts.md.

Each saver saves a small state twice. strace records the system calls of the second save. The benchmark enumerates the
states that a power cut may leave under the rules of three file systems, and loads each with the saver's own loader.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import sqlite3
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from threeloops.training.checkpoint import Checkpointer, LocalStore
from threeloops.training.checkpoint.crash import EXT4, POSIX, XFS, Escaped, Report, check, record_save, strace_works

from benchmarks.checkpoint_crash import dcp_load, state_of, torch_load
from benchmarks.result import Unmeasured

__all__ = ["SAVERS", "Saver", "page", "verdict"]

RULES = (POSIX, EXT4, XFS)
_HEAD = """# Which savers survive a power cut

`python -m benchmarks checkpoint --savers` wrote this page ({versions}).

Each saver saves a small state, and then another one. strace records the system calls of the second save, in all threads
and processes. `threeloops.training.checkpoint.crash` enumerates the states that a power cut at any moment may leave on
disk. If more than 60 states are possible right before an fsync, it takes a sample of them (`most=60`). The loader named
in the table then loads each state. The numbers are counts of states:

- **neither loads**: the loader raises an error or returns something that was never saved.
- **new one lost**: the second save had returned, but the loader returns the first state.

The loader "newest with `.metadata`" loads the newest folder that has this file. If that fails, it does not try an older
folder.

`crash/model/rules.py` holds the rules of each file system, with their sources:

- **POSIX** promises only that synced data is durable. A new name is durable after an fsync of its folder.
- **ext4** has its default options, data=ordered and auto_da_alloc.
- **XFS** has a journal like ext4, but no special rule for renames.

A verdict holds for the recorded calls under these rules. A state that fails here is possible, not certain: an actual
power cut may do no harm.

Under these rules, only an fsync of a folder makes a new name durable. SQLite calls fdatasync on the folder instead, so
the table counts its last commit as lost. That loss is real only if a file system treats the two calls differently.

For each saver that fails under POSIX, the command prints one bad state and the fsync that would have excluded it.

| saver | loader | {rules} |
| --- | --- | {lines} |
"""


@dataclass(frozen=True)
class Saver:
    """A way to save a state twice, as a generator that yields between the saves, and the library's way to load it."""

    name: str
    save: Callable[[Path], Iterator[None]]
    loader: str
    load: Callable[[Path], Any]
    needs: tuple[str, ...] = ()
    """The packages that the saver needs. The page leaves out a saver whose packages are not installed."""


def page(say: Callable[[str], None], *, savers: tuple[Saver, ...] | None = None, most: int = 60) -> str:
    """Generate the page, with a row for each saver whose packages are installed.

    `say` prints each row when it is ready. For a saver that fails under POSIX, it also prints one bad state and the
    fsync that would have excluded it.

    Raises:
        Unmeasured: strace cannot trace here.
    """
    if not strace_works():
        raise Unmeasured("strace is not installed, or may not trace a process here: apt-get install strace")
    rows: list[str] = []
    left_out: list[str] = []
    logging.disable(logging.CRITICAL)
    try:
        for saver in SAVERS if savers is None else savers:
            try:
                for package in saver.needs:
                    metadata.version(package)
                cells, detail = _row(saver, most)
            except metadata.PackageNotFoundError as error:
                left_out.append(f"{saver.name} ({error.name})")
                continue
            rows.append(f"| {saver.name} | {saver.loader} | {' | '.join(cells)} |")
            say("\n".join([rows[-1], *detail]))
    finally:
        logging.disable(logging.NOTSET)
    missing = f"\nLeft out, because a package is not installed: {', '.join(left_out)}.\n" if left_out else ""
    head = _HEAD.format(
        versions=_versions(), rules=" | ".join(rules.name for rules in RULES), lines=" | ".join("---" for _ in RULES)
    )
    return head + "\n".join(rows) + "\n" + missing


def verdict(report: Report) -> str:
    """Format one cell of the table."""
    broken, lost = report.count("broken"), report.count("lost")
    if report.ok:
        return f"survives ({report.states} states)"
    words = [f"neither loads: {broken}"] * bool(broken) + [f"new one lost: {lost}"] * bool(lost)
    return f"{', '.join(words)} (of {report.states})"


def _row(saver: Saver, most: int) -> tuple[list[str], list[str]]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            record = record_save(folder, saver.save)
        except Escaped as error:
            return [f"not judged: {error}"] * len(RULES), []
        reports = [check(record, _quietly(saver.load), rules, most=most) for rules in RULES]
    worst = [found for found in reports[0].bad if found.verdict == "broken"][:1] or reports[0].bad[:1]
    detail = [f"- {saver.name}, POSIX: {found.state.story}. Cause: {found.state.cause}." for found in worst]
    return [verdict(report) for report in reports], detail


def _quietly(load: Callable[[Path], Any]) -> Callable[[Path], Any]:
    def quiet(folder: Path) -> Any:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
            return load(folder)

    return quiet


def _versions() -> str:
    names = ["torch", "safetensors", "numpy", "transformers", "accelerate", "lightning", "joblib"]
    found = [f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    shown = subprocess.run(["strace", "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    return ", ".join([*found, shown.replace(" -- version", ""), f"Linux {platform.release().split('-')[0]}"])


# The savers. Each runs in a child process under strace.


def torch_by_path(folder: Path) -> Iterator[None]:
    torch.save(state_of(1), folder / "model.pt")
    yield
    torch.save(state_of(2), folder / "model.pt")


def torch_by_file(folder: Path) -> Iterator[None]:
    for step in (1, 2):
        with open(folder / "model.pt", "wb") as file:
            torch.save(state_of(step), file)
        if step == 1:
            yield


def torch_replaced(folder: Path) -> Iterator[None]:
    for step in (1, 2):
        torch.save(state_of(step), folder / "model.pt.tmp")
        os.replace(folder / "model.pt.tmp", folder / "model.pt")
        if step == 1:
            yield


def torch_synced(folder: Path) -> Iterator[None]:
    for step in (1, 2):
        with open(folder / "model.pt.tmp", "wb") as file:
            torch.save(state_of(step), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(folder / "model.pt.tmp", folder / "model.pt")
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        if step == 1:
            yield


def by_safetensors(folder: Path) -> Iterator[None]:
    from safetensors.torch import save_file

    save_file(state_of(1), folder / "model.safetensors")
    yield
    save_file(state_of(2), folder / "model.safetensors")


def by_numpy(folder: Path) -> Iterator[None]:
    np.save(folder / "model.npy", np.full(300, 1.0))
    yield
    np.save(folder / "model.npy", np.full(300, 2.0))


def _model(step: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(step)
    return model


def save_pretrained(folder: Path) -> Iterator[None]:
    model, later = _model(1), _model(2)
    model.save_pretrained(folder / "model")
    yield
    later.save_pretrained(folder / "model")


def dcp_same_folder(folder: Path) -> Iterator[None]:
    dcp.save(state_of(1), checkpoint_id=folder / "checkpoint", no_dist=True)
    yield
    dcp.save(state_of(2), checkpoint_id=folder / "checkpoint", no_dist=True)


def dcp_step_folders(folder: Path) -> Iterator[None]:
    dcp.save(state_of(1), checkpoint_id=folder / "1", no_dist=True)
    yield
    dcp.save(state_of(2), checkpoint_id=folder / "2", no_dist=True)


def dcp_async(folder: Path) -> Iterator[None]:
    for step in (1, 2):
        response: Any = dcp.async_save(state_of(step), checkpoint_id=folder / str(step), no_dist=True)
        (response if hasattr(response, "result") else response.upload_completion).result()
        if step == 1:
            yield


def by_joblib(folder: Path) -> Iterator[None]:
    import joblib

    joblib.dump(np.full(300, 1.0), folder / "model.joblib")
    yield
    joblib.dump(np.full(300, 2.0), folder / "model.joblib")


def _sqlite(folder: Path, pragmas: tuple[str, ...]) -> Iterator[None]:
    for step in (1, 2):
        base = sqlite3.connect(folder / "base.db")
        for pragma in pragmas:
            base.execute(f"pragma {pragma}").fetchall()
        base.execute("create table if not exists steps (step integer)")
        base.execute("insert into steps values (?)", (step,))
        base.commit()
        base.close()
        if step == 1:
            yield


def sqlite_default(folder: Path) -> Iterator[None]:
    yield from _sqlite(folder, ())


def sqlite_extra(folder: Path) -> Iterator[None]:
    yield from _sqlite(folder, ("synchronous=extra",))


def ours(folder: Path) -> Iterator[None]:
    Checkpointer(LocalStore(folder)).save(1, state_of(1))
    yield
    Checkpointer(LocalStore(folder)).save(2, state_of(2))


def accelerate_state(folder: Path) -> Iterator[None]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(8, 8))
    for step in (1, 2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        accelerator.save_state(str(folder / "state"))
        if step == 1:
            yield


def lightning_checkpoint(folder: Path) -> Iterator[None]:
    import lightning.pytorch as pl
    from lightning.pytorch.demos.boring_classes import BoringModel

    trainer = pl.Trainer(
        max_steps=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
    )
    trainer.fit(BoringModel())
    trainer.save_checkpoint(str(folder / "last.ckpt"))
    yield
    trainer.fit_loop.epoch_loop.max_steps = 2
    trainer.fit(trainer.model)
    trainer.save_checkpoint(str(folder / "last.ckpt"))


def trainer_rotation(folder: Path) -> Iterator[None]:
    """HF Trainer with save_total_limit=1: the older checkpoint is removed after the new one is written."""
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": torch.arange(4), "labels": torch.arange(4)} for _ in range(4)]
    for steps in (1, 2):
        arguments = TrainingArguments(
            output_dir=str(folder / "run"),
            max_steps=steps,
            save_steps=1,
            save_total_limit=1,
            use_cpu=True,
            report_to=[],
            per_device_train_batch_size=1,
            disable_tqdm=True,
            logging_steps=1000,
        )
        trainer = Trainer(_model(0), arguments, train_dataset=rows)  # type: ignore[arg-type]
        trainer.train(resume_from_checkpoint=steps > 1)
        if steps == 1:
            yield


# The loaders


def _safetensors_load(folder: Path) -> Any:
    from safetensors.torch import load

    return load((folder / "model.safetensors").read_bytes())


def _pretrained(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return dict(AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).state_dict())


def _newest_dcp(folder: Path) -> Any:
    """The newest folder that has `.metadata`, which DCP writes last."""
    steps = sorted(path for path in folder.iterdir() if (path / ".metadata").exists())
    return dcp_load(steps[-1])


def _joblib_load(folder: Path) -> Any:
    import joblib

    return joblib.load(folder / "model.joblib")


def _last_step(folder: Path) -> int:
    with contextlib.closing(sqlite3.connect(folder / "base.db")) as base:
        return base.execute("select max(step) from steps").fetchone()[0]


def _ours_load(folder: Path) -> Any:
    return Checkpointer(LocalStore(folder)).load().state


def _accelerate_load(folder: Path) -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(8, 8))
    accelerator.load_state(str(folder / "state"))
    return dict(model.state_dict())


def _lightning_load(folder: Path) -> Any:
    loaded = torch.load(folder / "last.ckpt", weights_only=False)
    return loaded["state_dict"], loaded["global_step"]


def _trainer_load(folder: Path) -> Any:
    from safetensors.torch import load
    from transformers.trainer_utils import get_last_checkpoint

    last = get_last_checkpoint(str(folder / "run"))
    if last is None:
        raise FileNotFoundError("no checkpoint")
    state = json.loads(Path(last, "trainer_state.json").read_text())
    optimizer = torch.load(Path(last, "optimizer.pt"), weights_only=True)
    weights = load(Path(last, "model.safetensors").read_bytes())
    return state["global_step"], weights, len(optimizer["state"])


SAVERS = (
    Saver("threeloops `Checkpointer.save`", ours, "`Checkpointer.load`", _ours_load),
    Saver("`torch.save(state, path)`", torch_by_path, "`torch.load`", torch_load),
    Saver("`torch.save(state, file)`", torch_by_file, "`torch.load`", torch_load),
    Saver("`torch.save`, `os.replace`", torch_replaced, "`torch.load`", torch_load),
    Saver("`torch.save`, fsync, `os.replace`, fsync of the folder", torch_synced, "`torch.load`", torch_load),
    Saver("`safetensors.torch.save_file`", by_safetensors, "`safetensors.torch.load`", _safetensors_load),
    Saver("`numpy.save`", by_numpy, "`numpy.load`", lambda folder: np.load(folder / "model.npy")),
    Saver("`save_pretrained`, same folder", save_pretrained, "`from_pretrained`",
          lambda folder: _pretrained(folder / "model"), ("transformers",)),
    Saver("torch DCP `save`, same folder", dcp_same_folder, "`dcp.load`",
          lambda folder: dcp_load(folder / "checkpoint")),
    Saver("torch DCP `save`, a folder for each step", dcp_step_folders, "newest with `.metadata`", _newest_dcp),
    Saver("torch DCP `async_save`, a folder for each step", dcp_async, "newest with `.metadata`", _newest_dcp),
    Saver("accelerate `save_state`, same folder", accelerate_state, "`load_state`", _accelerate_load, ("accelerate",)),
    Saver("Lightning `Trainer.save_checkpoint`, same file", lightning_checkpoint, "`torch.load`", _lightning_load,
          ("lightning",)),
    Saver("HF `Trainer`, `save_total_limit=1`", trainer_rotation, "`get_last_checkpoint`", _trainer_load,
          ("transformers", "accelerate")),
    Saver("`joblib.dump`", by_joblib, "`joblib.load`", _joblib_load, ("joblib",)),
    Saver("SQLite, defaults", sqlite_default, "`SELECT`", _last_step),
    Saver("SQLite, `synchronous=EXTRA`", sqlite_extra, "`SELECT`", _last_step),
)  # fmt: skip
