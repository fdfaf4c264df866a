"""Save and load checkpoints with all ranks of a group, so that a checkpoint is always complete.

A save has a fixed order. All ranks write their files and report whether they succeeded. Then the first rank commits,
after that it moves the pointer, and after that it removes older checkpoints. If the save stops at any point, the last
checkpoint is still there.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from msgspec.json import encode
from torch import Tensor

from threeloops.training.checkpoint.format import DTYPES, CheckpointError, CorruptCheckpointError, name_of
from threeloops.training.checkpoint.manifest import Manifest, as_step, attempt_at, decode, directory_of, step_of
from threeloops.training.checkpoint.pieces import Box, Sharded, assign_writers, check_cover, held, require_dense, split
from threeloops.training.checkpoint.reader import check_files, read_into
from threeloops.training.checkpoint.saving import Save, SavePlan, Staging
from threeloops.training.checkpoint.store import Store
from threeloops.training.checkpoint.writer import Saved, saved_blocks

__all__ = ["Checkpointer", "Loaded", "Stall"]

_Template = Mapping[str, Any] | Callable[[Manifest], Mapping[str, Any]]
_Message = TypeVar("_Message")


@dataclass(frozen=True)
class Stall:
    """How long training had to wait for an asynchronous save, in seconds."""

    waited: float
    """Time spent waiting for the previous save."""
    planned: float
    """Time spent agreeing with the other ranks on who writes what."""
    copied: float


@dataclass(frozen=True)
class Loaded:
    step: int
    state: dict[str, Any]
    """The template's tensors, if there was a template, and the plain values that this rank saved. If fewer ranks saved,
    a new rank gets the values of the first. Values of ranks that no longer exist are only in
    `manifest.values_of(rank)`."""
    manifest: Manifest
    skipped: tuple[str, ...]
    """Newer checkpoints that could not be loaded, each with the reason."""


class _Opening(NamedTuple):
    """The message of a rank when a save begins. The attempt, the problem and the checkpoints in the store are those of
    the first rank."""

    attempt: str
    problem: str
    directories: set[str]
    chain: int
    referred: set[str]
    """The checkpoints whose blocks this rank could reuse."""


class _Holding(NamedTuple):
    """The part of a state that a rank holds."""

    step: int
    mistake: str
    described: dict[str, tuple[str, tuple[int, ...]]]
    """The type and the shape of each tensor."""
    firsts: set[str]
    """Tensors that the first rank writes."""
    sizes: dict[tuple[str, Box], int]
    values: dict[str, Any]


class _Listing(NamedTuple):
    """The checkpoints that the first rank sees, in the order in which they are tried."""

    directories: list[str]
    problem: str


class _Reading(NamedTuple):
    """The outcome of one checkpoint on one rank. At most one of the two texts is not empty."""

    problem: str
    """The fault of the checkpoint."""
    mistake: str
    """The fault of the template."""
    names: list[str]
    """The tensors that the template asks for."""


class Checkpointer:
    """Save a state, and load the newest complete one. Every rank of the group makes the same calls in the same order.

    A state is a mapping from names to tensors, `Sharded` tensors, and plain values (JSON). A name refers to one tensor
    on all ranks. A plain tensor is whole, and equal on all ranks. One of the ranks that hold replicated data writes it.

    Args:
        group: the ranks that save together. By default all ranks, or this process if there are no others.
        keep: the number of checkpoints that are kept, besides milestones and files that a kept checkpoint refers to.
        milestones: every step that is a multiple is kept forever. 0 for none.
        full_every: one save in `full_every` is full. The others write only changed blocks of 1 MiB.
        state: the state that will be saved, to allocate the buffer of asynchronous saves now. Otherwise the first save
            allocates it, and takes several times as long as later saves.
    """

    def __init__(
        self,
        store: Store,
        group: dist.ProcessGroup | None = None,
        *,
        keep: int = 2,
        milestones: int = 1000,
        full_every: int = 8,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value, least in (("keep", keep, 1), ("milestones", milestones, 0), ("full_every", full_every, 1)):
            if value < least:
                raise ValueError(f"{name} = {value}: expected {least} or more")
        self.store = store
        self.group = group
        self.keep = keep
        self.milestones = milestones
        self.full_every = full_every
        alone = not dist.is_initialized()
        self.rank: int = 0 if alone else dist.get_rank(group)
        self.world: int = 1 if alone else dist.get_world_size(group)
        self._staging = Staging()
        self._under_way: Save | None = None
        self._saved: Saved = {}
        self._chain = 0
        if state is not None:
            self._staging.reserve(self._agree(0, state, "").boxes)

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Save, and return when the checkpoint survives a crash.

        Raises:
            CheckpointError: on all ranks, if one of them could not write. Earlier checkpoints are unchanged.
            ValueError: the ranks disagree about the state, or their parts do not add up to it.
        """
        self.wait()
        self._under_way = self._begin(step, state)
        self._under_way.write()
        self.wait()

    def save_async(self, step: int, state: Mapping[str, Any]) -> Stall:
        """Copy the state, and save the copy while training continues. If an earlier save is not done, this waits for it
        first. Errors after the copy are raised by the next call of this checkpointer. So call `wait` before the program
        ends, or the save may be lost.

        Raises:
            CheckpointError, ValueError: as `save`.
        """
        started = time.perf_counter()
        self.wait()
        waited = time.perf_counter()
        self._under_way = save = self._begin(step, state)
        planned = time.perf_counter()
        try:
            save.prepare()
            save.plan.boxes = self._staging.copy(save.plan.boxes)
            save.start()
        except BaseException as error:  # the other ranks could make their copies, and go on
            save.fail(error)
            if not isinstance(error, Exception):
                raise
        return Stall(waited - started, planned - waited, time.perf_counter() - planned)

    def wait(self) -> None:
        """Wait until the last save is done, and raise its error once, if it had one. After a KeyboardInterrupt, call
        this again: the save continues."""
        save = self._under_way
        if save is None:
            return
        try:
            self._raise_first(save, save.written())
            self._raise_first(save, save.published() if self.rank == 0 else "")
        except KeyboardInterrupt:
            raise
        except BaseException:  # also a collective's, where a rank has died
            save.cancel()
            self._under_way = None
            raise
        self._under_way = None
        self._saved = save.saved
        self._chain = save.plan.chain

    def load(self, template: _Template | None = None, step: int | None = None, *, strict: bool = True) -> Loaded:
        """Load the newest complete checkpoint, or that of `step`.

        The search begins at the pointer, and then tries steps from the newest on. A checkpoint that cannot be read, or
        in which a requested byte is not as it was written, is skipped with a warning.

        Args:
            template: the tensors to fill, as in a state, or a function that makes them from a manifest. Any number of
                ranks may ask for any parts. Without a template every rank loads all tensors.
            strict: a tensor that no rank asks for is an error.

        Raises:
            CheckpointError: there is no complete checkpoint. Tensors of the template may then hold anything.
            ValueError: the template does not fit the checkpoint.
        """
        self.wait()
        skipped: dict[str, str] = {}
        while untried := [name for name in self._candidates(step, skipped) if name not in skipped]:
            directory = untried[0]
            manifest, state, problem, mistake = self._read_checkpoint(directory, template)
            readings = self._gather(_Reading(problem, mistake, sorted(state)))
            for rank, reading in enumerate(readings):
                if reading.mistake:
                    raise ValueError(f"{directory}, rank {rank}: {reading.mistake}")
            if problems := [(rank, reading.problem) for rank, reading in enumerate(readings) if reading.problem]:
                skipped[directory] = f"{directory}: {problems[0][1]} (seen by rank {problems[0][0]})"
                continue
            assert manifest is not None
            asked = {name for reading in readings for name in reading.names}
            if strict and (unasked := sorted(manifest.tensors.keys() - asked)):
                raise ValueError(
                    f"{directory} has {_some(unasked)}, and no rank asks for that: give the template these names, or "
                    "strict=False"
                )
            for damage in skipped.values():
                warnings.warn(f"{damage}. Loaded {directory} in its place", stacklevel=2)
            self._saved = saved_blocks(manifest)
            self._chain = manifest.chain
            values = manifest.values_of(self.rank if self.rank < manifest.world else 0)
            return Loaded(manifest.step, {**state, **values}, manifest, tuple(skipped.values()))
        wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
        raise CheckpointError(f"there is no whole {wanted}. {'; '.join(skipped.values()) or f'{self.store} has none'}")

    def _begin(self, step: int, state: Mapping[str, Any]) -> Save:
        """Agree on who writes what, and make room."""
        attempt = ""
        problem = ""
        there = set[str]()
        step, mistake = as_step(step)
        if self.rank == 0 and not mistake:
            try:
                there = set(self.store.directories())
                places = [place for name in there if (place := step_of(name))]
                revision = max((old + 1 for other, old in places if other == step), default=0)
                attempt = attempt_at(directory_of(step, revision))
                self.store.begin(attempt)
            except Exception as error:  # whatever a store raises: the other ranks must not wait for this one
                problem = str(error) or repr(error)
        mine = {file.directory for files, _ in self._saved.values() for file in files}
        openings = self._gather(_Opening(attempt, problem, there, self._chain, mine))
        attempt, problem, there, chain, _ = openings[0]
        if problem:
            raise CheckpointError(f"step {step} was not saved: rank 0 cannot begin: {problem}")
        referred = set[str]().union(*(opening.referred for opening in openings))
        full = chain + 1 >= self.full_every or not referred or not referred <= there
        try:
            plan = self._agree(step, state, attempt, mistake)
        except BaseException:
            if self.rank == 0 and attempt:
                self.store.abort(attempt)
            raise
        plan.chain = 0 if full else chain + 1
        plan.there = frozenset(there)
        return Save(
            self.store,
            plan,
            {} if full else self._saved,
            identifies=self.full_every > 1,
            keep=self.keep,
            milestones=self.milestones,
        )

    def _agree(self, step: int, state: Mapping[str, Any], attempt: str, mistake: str = "") -> SavePlan:
        """Return the part of a state that this rank writes. If there are errors, all ranks get the same ones."""
        (tensors, values), mine, described, sizes = split({}), {}, {}, {}
        try:
            tensors, values = split(state)
            described = {name: (name_of(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}
            mine = held(tensors)
            sizes = {key: tensor.nbytes for key, tensor in mine.items()}
        except Exception as error:  # whatever a tensor raises: the other ranks must not wait for this one
            mistake = mistake or _mistake(error)
        firsts = {name for name, tensor in tensors.items() if isinstance(tensor, Sharded) and tensor.of_first_rank}
        holdings = self._gather(_Holding(step, mistake, described, firsts, sizes, values))
        for rank, holding in enumerate(holdings):
            if holding.mistake:
                raise ValueError(f"step {step} was not saved: rank {rank}: {holding.mistake}")
            if holding.step != holdings[0].step:
                raise ValueError(
                    f"rank {rank} saves step {holding.step}, and rank 0 step {holdings[0].step}: save together"
                )
            for name, what in holding.described.items():
                if described.setdefault(name, what) != what:
                    raise ValueError(
                        f"{name!r} is {what} on rank {rank}, and {described[name]} elsewhere: a name stands for one "
                        "tensor on all ranks; give each rank's own another name, or say with Sharded how it lies"
                    )
        all_firsts = set[str]().union(*(holding.firsts for holding in holdings))
        writers = assign_writers([holding.sizes for holding in holdings], all_firsts)
        check_cover(described, writers)
        first = holdings[0].values
        own = [
            {k: v for k, v in holding.values.items() if k not in first or encode(first[k]) != encode(v)}
            for holding in holdings[1:]
        ]
        lacking = tuple(tuple(sorted(first.keys() - holding.values.keys())) for holding in holdings)
        boxes = {key: tensor for key, tensor in mine.items() if key in writers[self.rank]}
        return SavePlan(
            step, attempt, self.rank, self.world, described, boxes, (first, *own), lacking if any(lacking) else ()
        )

    def _raise_first(self, save: Save, problem: str) -> None:
        """The first rank's that has one, on all ranks; and nothing is left of the save."""
        if problems := list(filter(None, self._gather(problem))):
            if self.rank == 0:
                save.abort()
            raise CheckpointError(problems[0])

    def _candidates(self, step: int | None, skipped: dict[str, str]) -> list[str]:
        """Return directories in the order in which they are tried: first the one that the pointer names, then newest
        first.

        A writer may remove a checkpoint that a reader has found, because newer ones exist. So a reader lists the
        directories again after each one that it cannot load. It forgets those in `skipped` that no longer exist,
        because they are not damaged.
        """
        directories = list[str]()
        problem = ""
        if self.rank == 0:
            try:
                there = sorted(self.store.directories(), key=lambda name: step_of(name) or (-1, 0), reverse=True)
                pointed = self.store.pointer()  # after the list, which may lack what is committed while it is made
                directories = sorted(there, key=lambda name: name != pointed)
                if step is not None:
                    directories = [name for name in there if (step_of(name) or (-1, 0))[0] == step]
                elif step_of(pointed) and pointed not in there:
                    directories = [pointed, *there]
            except Exception as error:  # whatever a store raises: the other ranks must not wait for this one
                problem = str(error) or repr(error)
        directories, problem = self._gather(_Listing(directories, problem))[0]
        if problem:
            raise CheckpointError(f"rank 0 cannot see which checkpoints there are: {problem}")
        for name in skipped.keys() - directories:
            del skipped[name]
        return directories

    def _read_checkpoint(
        self, directory: str, template: _Template | None
    ) -> tuple[Manifest | None, dict[str, Any], str, str]:
        """Return the manifest and the state of one checkpoint, or the error of the checkpoint or of the template."""
        try:
            manifest = decode(self.store.manifest(directory))
            if (manifest.step,) != (step_of(directory) or ())[:1]:
                raise CorruptCheckpointError(f"the manifest is that of step {manifest.step}")
            check_files(self.store, manifest)
        except Exception as error:
            return None, {}, _damage(error), ""
        try:
            wanted = _whole(manifest) if template is None else template(manifest) if callable(template) else template
            asked = {name: value for name, value in wanted.items() if isinstance(value, Tensor | Sharded)}
            _check_fit(asked, manifest)
        except Exception as error:  # whatever a template raises: the other ranks must not wait for this one
            return None, {}, "", _mistake(error)
        try:
            read_into(self.store, manifest, asked)
        except Exception as error:
            return None, {}, _damage(error), ""
        return manifest, asked, "", ""

    def _gather(self, mine: _Message) -> list[_Message]:
        """Return the values of all ranks, in order."""
        if self.world == 1:
            return [mine]
        everyone = [mine] * self.world
        dist.all_gather_object(everyone, mine, group=self.group)
        return everyone


def _check_fit(asked: Mapping[str, Tensor | Sharded], manifest: Manifest) -> None:
    if missing := sorted(asked.keys() - manifest.tensors.keys()):
        raise ValueError(f"it does not have {_some(missing)}, which the template asks for: was another model saved?")
    for name, value in asked.items():
        require_dense(name, value)
        entry = manifest.tensors[name]
        if (entry.dtype, entry.shape) != (name_of(value.dtype), tuple(value.shape)):
            raise ValueError(
                f"{name!r} has type {entry.dtype} and shape {entry.shape} there: expected {name_of(value.dtype)} and "
                f"{tuple(value.shape)}, those of the template"
            )


def _whole(manifest: Manifest) -> dict[str, Tensor]:
    return {name: torch.empty(entry.shape, dtype=DTYPES[entry.dtype]) for name, entry in manifest.tensors.items()}


def _mistake(error: Exception) -> str:
    """Describe what is wrong with a state or a template. For an unforeseen error, the type is named too."""
    return str(error) if isinstance(error, TypeError | ValueError) else repr(error)


def _damage(error: Exception) -> str:
    """Describe what is wrong with a checkpoint. For an error of a store, the type is named too."""
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
