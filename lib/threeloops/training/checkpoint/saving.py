"""A save in progress: this rank writes its part, and the first rank then makes a checkpoint of all parts.

An asynchronous save uses no collectives in the background, so torch's communication stays free for training. Instead,
each rank leaves a note in the store about what it wrote, and the first rank waits for these notes.
"""

import sys
import threading
import time
import warnings
from collections.abc import Hashable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from threeloops.training.checkpoint.format import CorruptCheckpointError, NewerCheckpointError, octets_of
from threeloops.training.checkpoint.manifest import VERSION, Manifest, committed_as, decode, encode, step_of
from threeloops.training.checkpoint.pieces import Box
from threeloops.training.checkpoint.store import Store
from threeloops.training.checkpoint.writer import RankManifest, Saved, merge, workers, write_part

__all__ = ["Save", "SavePlan", "Staging"]

_POLL_SECONDS = 0.002
_GRACE_SECONDS = 5.0
_ALIGNMENT = 64
_CHUNK = 1 << 19
"""Bytes that a thread copies at once."""

_Key = TypeVar("_Key", bound=Hashable)


@dataclass
class SavePlan:
    """The plan of a save, and the part of it that this rank writes."""

    step: int
    attempt: str
    """See `Store`."""
    rank: int
    world: int
    described: dict[str, tuple[str, tuple[int, ...]]]
    """Type and global shape of every tensor."""
    boxes: dict[tuple[str, Box], Tensor]
    values: tuple[dict[str, Any], ...]
    lacking: tuple[tuple[str, ...], ...]
    """`values` and `lacking` as in a manifest."""
    chain: int = 0
    there: frozenset[str] = frozenset()
    """Directories of all checkpoints when the save began."""


class Save:
    """A rank's part of one save: `write` it, or `prepare` a thread and `start` to write it in the background.

    Args:
        before: blocks of earlier saves, which are not written again.
        identifies: whether a later save may compare its blocks with this one's.
    """

    def __init__(
        self, store: Store, plan: SavePlan, before: Saved, *, identifies: bool, keep: int, milestones: int
    ) -> None:
        self.plan = plan
        self._store = store
        self._before = before
        self._identifies = identifies
        self._keep = keep
        self._milestones = milestones
        self._part: RankManifest | None = None
        self._not_written = self._not_published = ""  # what users read
        self._started = threading.Event()
        self._written = threading.Event()
        self._cancelled = threading.Event()
        self._committed = False
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Make the thread in advance. It waits for `start`. A new thread blocks its creator until it first yields."""
        thread = threading.Thread(target=self._run, name=f"save of step {self.plan.step}")
        thread.start()
        self._thread = thread

    def start(self) -> None:
        self._started.set()

    def _run(self) -> None:
        self._started.wait()
        if not self._not_written:
            self.write()
        if self.plan.rank == 0 and not self._not_written:
            self._publish()
        if (problem := self._not_written or self._not_published) and not threading.main_thread().is_alive():
            print(problem, file=sys.stderr)  # nobody will wait for it

    def write(self) -> None:
        """Write this rank's file, and leave a note about its contents for the first rank."""
        plan = self.plan
        try:
            boxes = {key: tensor.cpu().contiguous() for key, tensor in plan.boxes.items()}
            shapes = {name: shape for name, (_, shape) in plan.described.items()}
            name = f"rank-{plan.rank:05d}.safetensors"
            self._part = write_part(self._store, plan.attempt, name, boxes, shapes, self._before, self._identifies)
            self._check_cancelled()  # or a later save may have copied over what was read
            if plan.rank:
                self._store.note(plan.attempt, str(plan.rank), msgspec.json.encode(self._part))
        except BaseException as error:  # whatever a store raises: it is for the training loop, and not for this thread
            self.fail(error)
            if not isinstance(error, Exception):
                raise
        plan.boxes = {}
        self._written.set()

    def fail(self, error: BaseException) -> None:
        """Note that this rank writes nothing because of this error. All ranks get the error when they wait."""
        self._not_written = self._not_saved(error)
        if self.plan.rank:
            with suppress(Exception):
                self._store.note(self.plan.attempt, str(self.plan.rank), b"")  # let the first rank not wait
        self.plan.boxes = {}
        self._written.set()
        self._started.set()

    def written(self) -> str:
        """Wait until the file is durable. Returns "" or the error."""
        self._written.wait()
        return self._not_written

    def published(self) -> str:
        """Wait on the first rank, after all have written, until the checkpoint exists. Returns "" or the error."""
        if self._thread is not None:
            self._thread.join()
        elif not self._committed and not self._not_published:  # it may have been interrupted
            self._publish()
        return self._not_published

    def cancel(self) -> None:
        """Give up the save, because nobody will wait for it. From here on it does not become a checkpoint."""
        self._cancelled.set()

    def abort(self) -> None:
        """Remove the files of an unfinished save."""
        self.cancel()
        if self._thread is not None:
            self._thread.join()
        if not self._committed:
            self._store.abort(self.plan.attempt)

    @property
    def saved(self) -> Saved:
        """The blocks that this rank wrote or referred to."""
        assert self._part is not None
        return {
            (name, piece.start, piece.shape, self.plan.described[name][0]): (self._part.files, piece.blocks)
            for name, pieces in self._part.pieces.items()
            for piece in pieces
        }

    def _publish(self) -> None:
        """Make a checkpoint of the files of all ranks. Then move the pointer to it. Then remove what is no longer
        needed."""
        plan = self.plan
        directory = committed_as(self.plan.attempt)
        try:
            assert self._part is not None
            parts = [self._part, *(self._part_of(rank) for rank in range(1, plan.world))]
            files, tensors = merge(parts, plan.described)
            manifest = Manifest(VERSION, plan.step, plan.world, plan.chain, files, tensors, plan.values, plan.lacking)
            data = encode(manifest)
            decode(data)  # a checkpoint must be loadable before it is committed
            self._check_cancelled()
            self._store.commit(plan.attempt, data)
            self._committed = True
            self._store.point(directory)
        except BaseException as error:
            self._not_published = self._not_saved(error)
            if self._committed:
                self._not_published = (
                    f"step {plan.step} was written, but the pointer to it could not be moved: rank 0: {_said(error)}. "
                    f"load(step={plan.step}) finds it, and the next save moves the pointer"
                )
            if not isinstance(error, Exception):
                raise
            return
        try:
            _retain(self._store, directory, plan.there, self._keep, self._milestones)
        except Exception as error:
            warnings.warn(f"older checkpoints could not be removed: {_said(error)}", stacklevel=2)

    def _part_of(self, rank: int) -> RankManifest:
        """Return another rank's note, once it exists."""
        leave = float("inf")
        while not self._cancelled.is_set() and time.monotonic() < leave:
            with suppress(FileNotFoundError):
                if note := self._store.read_note(self.plan.attempt, str(rank)):
                    return msgspec.json.decode(note, type=RankManifest)
                break
            if leave == float("inf") and not threading.main_thread().is_alive():
                leave = time.monotonic() + _GRACE_SECONDS  # the program ends: do not keep it
            self._cancelled.wait(_POLL_SECONDS)
        raise RuntimeError(f"rank {rank} has not written its part")

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise RuntimeError("the save was given up")

    def _not_saved(self, error: BaseException) -> str:
        plan = self.plan
        return f"step {plan.step} was not saved: rank {plan.rank}: {_said(error)}. Earlier checkpoints are as they were"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _retain(store: Store, newest: str, old: frozenset[str], keep: int, milestones: int) -> None:
    """Remove from `old` everything except `newest`, the `keep` − 1 checkpoints before it, milestones, and whatever any
    of these refers to.

    Steps after the newest belong to a run that was rolled back, and so does an older revision of a step. A checkpoint
    that cannot be read does not count. A checkpoint of a newer release may refer to any of them, so then all of them
    stay.

    `old` lists the checkpoints from before this save. So if two jobs save here by mistake, neither removes what the
    other commits meanwhile, and the last committed checkpoint stays.

    Raises:
        CheckpointError: there is a checkpoint of a newer release, or another job has removed one that this one needs.
    """
    places = {name: place for name in store.directories() if (place := step_of(name))}
    newest_files = decode(store.manifest(newest)).files if newest in places else ()
    if newest not in places or any(file.directory not in places for file in newest_files):
        raise CorruptCheckpointError(f"{newest}, or what it refers to, was removed: is another job saving here?")
    needed = {newest}
    seen = set[int]()
    remaining = keep
    for name in sorted(places, key=lambda name: (name != newest, -places[name][0], -places[name][1])):
        step = places[name][0]
        try:
            files = newest_files if name == newest else decode(store.manifest(name)).files
        except NewerCheckpointError as error:
            raise NewerCheckpointError(
                f"{name}: {error}. It may refer to all that are there: remove it if it is not needed"
            ) from None
        except (CorruptCheckpointError, FileNotFoundError):
            continue
        if step in seen:
            continue
        milestone = bool(milestones) and step % milestones == 0
        if not milestone and (remaining == 0 or step > places[newest][0]):
            continue
        seen.add(step)
        needed |= {name, *(file.directory for file in files)}
        remaining -= not milestone or name == newest
    for name in sorted(places.keys() & old - needed, reverse=True):  # first what refers to others: readers see no half
        with suppress(FileNotFoundError):  # another job has removed it
            store.remove(name)


class Staging:
    """One buffer, with a place in it for each tensor."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._places: dict[Hashable, Tensor] = {}
        self._threads = ThreadPoolExecutor(workers(), thread_name_prefix="staging")

    def reserve(self, tensors: Mapping[_Key, Tensor]) -> None:
        """Make room for tensors of these names, types and shapes, and touch every page of it."""
        if {key: (place.dtype, place.shape) for key, place in self._places.items()} == {
            key: (tensor.dtype, tensor.shape) for key, tensor in tensors.items()
        }:
            return
        self._places = {}
        sizes = {key: -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for key, tensor in tensors.items()}
        if self._buffer.numel() < sum(sizes.values()):
            self._buffer = torch.empty(0, dtype=torch.uint8)  # freed first
            pinned = any(tensor.is_cuda for tensor in tensors.values())
            self._buffer = torch.empty(sum(sizes.values()), dtype=torch.uint8, pin_memory=pinned).zero_()
        at = 0
        for key, tensor in tensors.items():
            octets = self._buffer[at : at + prod(tensor.shape) * tensor.element_size()]
            self._places[key] = octets.view(tensor.dtype).view(tensor.shape)
            at += sizes[key]

    @torch.no_grad()
    def copy(self, tensors: Mapping[_Key, Tensor]) -> dict[_Key, Tensor]:
        """Copy these values into the buffer, and return the copies. They stay unchanged until the next call."""
        self.reserve(tensors)
        plain = list[tuple[Tensor, Tensor]]()
        others = list[tuple[Tensor, Tensor]]()
        for key, tensor in tensors.items():
            on_cpu = tensor.device.type == "cpu" and tensor.is_contiguous()
            (plain if on_cpu else others).append((self._places[key], tensor))
        for place, tensor in others:  # devices copy while the CPU does
            place.copy_(tensor, non_blocking=True)
        self._copy_octets([(octets_of(place), octets_of(tensor)) for place, tensor in plain])
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return {key: self._places[key] for key in tensors}

    def _copy_octets(self, pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
        """Copy with several threads. A thread takes the next chunk when it has finished one, so one that has to wait
        for a core does not delay the others."""
        chunks = [
            (place[at : at + _CHUNK], octets[at : at + _CHUNK])
            for place, octets in pairs
            for at in range(0, len(octets), _CHUNK)
        ]
        rest = iter(chunks)

        def copy() -> None:
            for place, octets in rest:
                np.copyto(place, octets)

        helpers = list[Future[None]]()
        with suppress(RuntimeError):  # the main thread has ended, so the pool accepts no more work
            helpers += (self._threads.submit(copy) for _ in range(min(workers(), len(chunks)) - 1))
        copy()
        for helper in helpers:
            helper.result()
