"""Checkpoints of one process beside torch's own, on the same disk: throughput, what training waits for, and bytes.

Every save is timed until its data are on the disk. Loads come from the page cache, which is what is left of a save that
was just made; parties take turns, so that whatever disturbs the machine meets all of them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from threeloops.files import sync
from threeloops.training.checkpoint import Checkpointer, LocalStore
from threeloops_grader.machine.provenance import Provenance

from benchmarks.checkpoint_crash import Saver, crash_rows, errors_in_a_file
from benchmarks.checkpoint_kills import kill_rows
from benchmarks.result import Prediction, Result, Series

__all__ = ["measure"]

OURS, OURS_FULL = "threeloops, incremental", "threeloops, full saves only"
DCP, DCP_ASYNC, TORCH, SAFETENSORS = "torch DCP", "torch DCP, async_save", "torch.save", "safetensors, fsync"
SAVE, LOAD = "save", "load"
FIRST, LATER = "stall of the first asynchronous save", "stall of a later asynchronous save"
MIB = 1 << 20

State = dict[str, torch.Tensor]


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """A state of 512 MiB in 128 tensors, one of 200,000 small tensors, and 100 kills; `quick` takes 32 MiB, 2,000
    tensors, two rounds, and 4 kills."""
    tensors, rounds, kills = (8, 2, 4) if quick else (128, 7, 100)
    many = 2_000 if quick else 200_000
    state = _state(tensors, 4 * MIB)
    with tempfile.TemporaryDirectory(prefix="threeloops-checkpoint-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP's, that there is no process group
        _say(f"saves and loads, {rounds} rounds")
        throughput = _throughput(state, Path(folder), rounds)
        _say(f"saves of {many:,} tensors")
        small = _many_tensors(Path(folder), many, min(rounds, 3))
        _say("stalls of asynchronous saves")
        stalls, copy_seconds = _stalls(state, Path(folder), rounds)
        increments = _increments(state, Path(folder))
        with errors_in_a_file() as errors:
            _say(f"{kills} kills")
            killed = kill_rows(Path(folder), kills)
            _say("crash states")
            crashed = crash_rows(Saver(OURS, _save_once, _load_once), most=30 if quick else 300)
        if errors.exists():
            _say(f"what DCP printed of the checkpoints that it could not load is in {errors}")
    total = sum(tensor.nbytes for tensor in state.values())
    return Result(
        "checkpoint",
        about,
        {"quick": quick, "tensors": tensors, "bytes": total},
        [*throughput, *small, *stalls, *crashed, *killed],
        {"seconds of one copy of the state": copy_seconds},
        increments,
        [
            "ours is durable after each save: files, their folder, its rename and the pointer are synced, and every "
            "MiB has a checksum, which each load verifies. DCP syncs its files, and no folder; torch.save and "
            "safetensors are followed by an fsync of their file. None of them has checksums that a load verifies",
            "crash states: what a power cut may leave of one small save over another, under the rules named. Both "
            "lost: neither checkpoint can be loaded. Lost after it returned: the old one is loaded all the same",
            "kills: after SIGKILL nothing is lost of what was written, synced or not, so this is the milder test",
            "stalls are in copies of the state: one into memory that was touched before, measured in the same run",
        ],
    )


def _say(what: str) -> None:
    print(f"checkpoint: {what}", flush=True)


def _save_once(folder: Path, state: State, step: int) -> None:
    Checkpointer(LocalStore(folder)).save(step, state)


def _load_once(folder: Path) -> State:
    return Checkpointer(LocalStore(folder)).load().state


def _state(tensors: int, size: int) -> State:
    generator = torch.Generator().manual_seed(0)
    return {f"layer.{n}.weight": torch.randn(size // 4096, 1024, generator=generator) for n in range(tensors)}


def _throughput(state: State, folder: Path, rounds: int) -> list[Series]:
    total = sum(tensor.nbytes for tensor in state.values())
    into = {name: tensor.clone() for name, tensor in state.items()}

    def ours(name: str, full_every: int) -> tuple[Callable[[], object], Callable[[], object] | None]:
        checkpointer = Checkpointer(LocalStore(folder / name), full_every=full_every)
        return lambda: checkpointer.save(1, state), lambda: Checkpointer(LocalStore(folder / name)).load(into)

    def safetensors_save() -> None:
        (folder / SAFETENSORS).mkdir()
        save_file(state, folder / SAFETENSORS / "state.safetensors")
        sync(folder / SAFETENSORS / "state.safetensors")

    def dcp_save() -> None:
        dcp.save(dict(state), storage_writer=dcp.FileSystemWriter(folder / DCP, sync_files=True), no_dist=True)

    def dcp_load() -> None:
        dcp.load(dict(into), storage_reader=dcp.FileSystemReader(folder / DCP), no_dist=True)

    saves: dict[str, list[float]] = {name: [] for name in (OURS_FULL, OURS, TORCH, SAFETENSORS, DCP)}
    loads: dict[str, list[float]] = {name: [] for name in saves if name != SAFETENSORS}  # it maps the file
    for measured in range(-1, rounds):  # the first round is not measured
        for name in saves:
            shutil.rmtree(folder / name, ignore_errors=True)
            os.sync()
            if name in (OURS, OURS_FULL):
                save, load = ours(name, 8 if name == OURS else 1)
            elif name == TORCH:
                save, load = lambda: _torch_save(folder, state), lambda: torch.load(folder / TORCH / "state.pt")
            elif name == SAFETENSORS:
                save, load = safetensors_save, None
            else:
                save, load = dcp_save, dcp_load
            saved, loaded = _seconds(save), _seconds(load) if load else None
            if measured >= 0:
                saves[name].append(total / saved)
            if measured >= 0 and loaded:
                loads[name].append(total / loaded)
    return [
        Series(what, name, "bytes/s", tuple(samples), "higher", peer=name == DCP)
        for what, found in ((SAVE, saves), (LOAD, loads))
        for name, samples in found.items()
    ]


def _torch_save(folder: Path, state: State) -> None:
    (folder / TORCH).mkdir()
    with (folder / TORCH / "state.pt").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _many_tensors(folder: Path, count: int, rounds: int) -> list[Series]:
    """Save tensors of 256 bytes, where what each tensor costs counts, and not its bytes."""
    state = {f"layer.{n}.weight": torch.full((64,), float(n)) for n in range(count)}

    def ours(name: str, full_every: int) -> Callable[[], object]:
        return lambda: Checkpointer(LocalStore(folder / name), full_every=full_every).save(1, state)

    saves = {OURS_FULL: ours(OURS_FULL, 1), OURS: ours(OURS, 8), TORCH: lambda: _torch_save(folder, state)}
    seconds: dict[str, list[float]] = {name: [] for name in saves}
    for _ in range(rounds):
        for name, save in saves.items():
            shutil.rmtree(folder / name, ignore_errors=True)
            os.sync()
            seconds[name].append(_seconds(save))
    what = f"save of {count:,} small tensors"
    return [Series(what, name, "s", tuple(samples), peer=name == TORCH) for name, samples in seconds.items()]


def _stalls(state: State, folder: Path, rounds: int) -> tuple[list[Series], list[float]]:
    """Measure for how long the call delays training while nothing else is being written."""
    found: dict[tuple[str, str], list[float]] = {(w, by): [] for w in (FIRST, LATER) for by in (OURS_FULL, DCP_ASYNC)}
    copies = []
    buffer = {name: tensor.clone() for name, tensor in state.items()}
    for _ in range(rounds):
        seconds = min(_seconds(lambda: _copy(state, buffer)) for _ in range(3))
        copies.append(seconds)
        for by in (OURS_FULL, DCP_ASYNC):
            place = folder / "stalls"
            shutil.rmtree(place, ignore_errors=True)
            os.sync()
            begin: Callable[[int], Callable[[], object]]
            if by == OURS_FULL:
                checkpointer = Checkpointer(LocalStore(place), full_every=1, state=state)

                def begin(step: int, checkpointer: Checkpointer = checkpointer) -> Callable[[], object]:
                    checkpointer.save_async(step, state)
                    return checkpointer.wait
            else:

                def begin(step: int, place: Path = place) -> Callable[[], object]:
                    writer = dcp.FileSystemWriter(place / str(step), sync_files=True)
                    return _result_of(dcp.async_save(dict(state), storage_writer=writer, no_dist=True))

            for step, what in enumerate((FIRST, LATER, LATER)):
                started = time.perf_counter()
                finish = begin(step)
                found[what, by].append((time.perf_counter() - started) / seconds)
                finish()
    series = [Series(what, by, "copies", tuple(samples), peer=by == DCP_ASYNC) for (what, by), samples in found.items()]
    return series, copies


def _copy(state: State, into: State) -> None:
    """Copy with memcpy on one thread. torch's own copy uses several, and is slower on a busy machine."""
    for name, tensor in state.items():
        np.copyto(into[name].numpy(), tensor.numpy())


def _result_of(response: object) -> Callable[[], object]:
    return response.result if hasattr(response, "result") else response.upload_completion.result  # type: ignore


def _increments(state: State, folder: Path) -> list[Prediction]:
    """All that a step's folder holds, manifest and header too, beside the bytes that have changed."""
    tensors = list(state.values())
    tenth = tensors[: max(2, round(len(tensors) / 10))]
    changes = {
        "one tensor": tensors[:1],
        "half of the tensors": tensors[::2],
        "a tenth, which begins inside of a block": [tenth[0][len(tenth[0]) // 3 :], *tenth[1:]],
    }
    found = []
    for case, changed in changes.items():
        place = folder / "increments"
        shutil.rmtree(place, ignore_errors=True)
        checkpointer = Checkpointer(LocalStore(place))
        checkpointer.save(1, state)
        for tensor in changed:
            tensor += 1
        checkpointer.save(2, state)
        written = sum(path.stat().st_size for path in (place / "step-00000002").iterdir())
        bytes_changed = sum(tensor.nbytes for tensor in changed)
        found.append(Prediction("bytes of an incremental save", case, OURS, "bytes", bytes_changed, written))
    return found


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
