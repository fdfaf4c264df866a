"""Send the results of actions to the ranks that need them: by tags, or in one order that all ranks share.

gloo and the virtual cluster match a send with a receive by its tag. So a rank sends each result as soon as it is there,
and asks for an input one action ahead, whatever the other ranks do meanwhile.

NCCL ignores tags. It executes the sends and receives of a rank one after the other, on a stream of its own, and each
ends only when the peer has come to the same message. Two ranks that both send first wait for each other forever. So for
tensors on a GPU all ranks go through the same rounds, which follow from the schedule. In a round each rank performs its
next action if the input was there before. Then the results of the round travel, as one `batch_isend_irecv` per rank,
which NCCL executes as one group.

This cannot deadlock. A rank comes to the messages of round k after its action of round k, and that action needs only
messages of earlier rounds. If all ranks finish those, all finish round k.

On NCCL, `wait` of a work makes the current CUDA stream wait, and not the host. So it is called before a computation
reads a received tensor, and before a sent one is let go.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from threeloops.training.data_parallel.replicas import carried_devices
from threeloops.training.pipeline.schedule import Action, Schedule

__all__ = ["Messages", "Ordered", "Tagged", "device_of_messages", "rounds"]


class Messages(Protocol):
    """The inputs and results of one rank's actions."""

    def look_ahead(self, actions: Sequence[Action]) -> None:
        """Ask for the inputs of these actions, which come next."""

    def receive(self, action: Action) -> Tensor | None:
        """Wait for the input of an action; None if it needs none."""

    def send(self, action: Action, result: Tensor | None) -> None:
        """Begin to send a result to the rank that needs it, if there is one."""

    def finish(self) -> None:
        """Wait for everything that was sent."""


class _Inbox:
    """The shared part of both kinds: buffers to receive into, and results that stay on this rank.

    Args:
        activations: tensors like those that each stage hands to the next.
        device: of tensors whose `activations` are on the meta device.
    """

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        group: dist.ProcessGroup | None,
        activations: Sequence[Tensor],
        device: torch.device,
    ) -> None:
        self._schedule = schedule
        self._rank = rank
        self._group = group
        self._activations = activations
        self._device = device
        self._here: dict[Action, Tensor] = {}
        """Results of this rank that it needs itself, by the action that needs them (B stands for I as well)."""

    def _buffer(self, wants: Action) -> Tensor:
        like = self._activations[wants.stage - 1 if wants.kind == "F" else wants.stage]
        return torch.empty(like.shape, dtype=like.dtype, device=self._device if like.is_meta else like.device)


class Tagged(_Inbox):
    """Messages that are matched by tag. A tag per microbatch is enough, since a microbatch's messages from one rank to
    another leave in the order in which they are requested. Tag 0 is left for tied weights."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asked: dict[Action, tuple[dist.Work, Tensor]] = {}
        self._sent: dict[Action, tuple[dist.Work, Tensor]] = {}

    def look_ahead(self, actions: Sequence[Action]) -> None:
        for action in actions:
            source = self._schedule.source(action)
            wants = _wants(action, action.stage)
            if source is None or self._schedule.placement[source] == self._rank or wants in self._asked:
                continue
            buffer = self._buffer(wants)
            peer = self._schedule.placement[source]
            work = dist.irecv(buffer, group=self._group, group_src=peer, tag=1 + wants.microbatch)
            self._asked[wants] = work, buffer

    def receive(self, action: Action) -> Tensor | None:
        if self._schedule.source(action) is None:
            return None
        wants = _wants(action, action.stage)
        if wants not in self._asked:
            return self._here.pop(wants)
        work, buffer = self._asked.pop(wants)
        work.wait()
        if answered := self._sent.pop(Action("F", action.stage, action.microbatch), None):
            answered[0].wait()  # no longer than this: the activation whose gradient is here was received
        return buffer

    def send(self, action: Action, result: Tensor | None) -> None:
        target = self._schedule.target(action)
        if target is None:
            return
        assert result is not None
        wants = _wants(action, target)
        peer = self._schedule.placement[target]
        if peer == self._rank:
            self._here[wants] = result
            return
        result = result.contiguous()
        work = dist.isend(result, group=self._group, group_dst=peer, tag=1 + wants.microbatch)
        self._sent[action] = work, result

    def finish(self) -> None:
        for work, _ in self._sent.values():
            work.wait()


class Ordered(_Inbox):
    """Messages in the rounds of the schedule, without tags."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._batches = _batches(self._schedule, self._rank)
        self._pending: deque[tuple[list[dist.Work], list[Tensor]]] = deque()
        self._begun = self._ended = 0
        self._arriving: dict[Action, tuple[int, Tensor]] = {}
        """The number of the batch that brings an input, and the input."""
        if self._schedule.ranks > 1:
            # A batch of some ranks must not be the group's first call: NCCL then waits until all have connected.
            dist.all_reduce(torch.zeros(1, device=self._device), group=self._group)
        self._exchange(None, None)

    def look_ahead(self, actions: Sequence[Action]) -> None:
        """Do nothing: inputs are asked for in their rounds."""

    def receive(self, action: Action) -> Tensor | None:
        if self._schedule.source(action) is None:
            return None
        wants = _wants(action, action.stage)
        if wants not in self._arriving:
            return self._here.pop(wants)
        batch, buffer = self._arriving.pop(wants)
        self._wait_through(batch)
        return buffer

    def send(self, action: Action, result: Tensor | None) -> None:
        target = self._schedule.target(action)
        if target is not None and self._schedule.placement[target] == self._rank:
            assert result is not None
            self._here[_wants(action, target)] = result
        self._exchange(action, result)

    def finish(self) -> None:
        self._wait_through(self._begun - 1)

    def _exchange(self, action: Action | None, result: Tensor | None) -> None:
        """Begin the batches between an action and this rank's next one. None stands for the start."""
        for batch in self._batches[action]:
            operations = []
            for source, target, wants in batch:
                if source == self._rank:
                    assert result is not None
                    tensor = result.contiguous()
                    call = dist.isend
                    peer = target
                else:
                    tensor = self._buffer(wants)
                    call = dist.irecv
                    peer = source
                    self._arriving[wants] = self._begun, tensor
                operations.append(dist.P2POp(call, tensor, group=self._group, group_peer=peer))
            works = dist.batch_isend_irecv(operations)
            self._pending.append((works, [operation.tensor for operation in operations]))
            self._begun += 1

    def _wait_through(self, batch: int) -> None:
        """Wait for a batch and those before it. They end in this order on NCCL, so that costs nothing."""
        while self._ended <= batch:
            for work in self._pending.popleft()[0]:
                work.wait()
            self._ended += 1


def rounds(schedule: Schedule) -> list[list[Action | None]]:
    """List the action of each rank in each round: its next one, or None while the input is not there."""
    remaining = [deque(row) for row in schedule.rows]
    there = set[Action]()
    by_round = []
    while any(remaining):
        acting = [
            row[0] if row and (schedule.source(row[0]) is None or _wants(row[0], row[0].stage) in there) else None
            for row in remaining
        ]
        for row, action in zip(remaining, acting, strict=True):
            if action is not None:
                row.popleft()
                if (target := schedule.target(action)) is not None:
                    there.add(_wants(action, target))
        by_round.append(acting)
    return by_round


_Message = tuple[int, int, Action]
"""The sender, the receiver, and the action that needs the message."""


def _batches(schedule: Schedule, rank: int) -> dict[Action | None, list[list[_Message]]]:
    """The batches of messages from or to a rank, by its last action before them; None before its first."""
    last: Action | None = None
    batches: dict[Action | None, list[list[_Message]]] = {None: []}
    for acting in rounds(schedule):
        if acting[rank] is not None:
            last = acting[rank]
            batches[last] = []
        messages = []
        for source, action in enumerate(acting):
            target = None if action is None else schedule.target(action)
            if action is not None and target is not None:
                peer = schedule.placement[target]
                if source != peer and rank in (source, peer):
                    messages.append((source, peer, _wants(action, target)))
        if messages:
            batches[last].append(messages)
    return batches


def _wants(action: Action, stage: int) -> Action:
    """Name the action that needs an activation or a gradient on a stage; B stands for I as well."""
    return Action("F" if action.kind == "F" else "B", stage, action.microbatch)


def device_of_messages(
    activations: Sequence[Tensor], stages: Mapping[int, nn.Module], group: dist.ProcessGroup | None
) -> torch.device:
    """Return the device of the tensors that this rank sends and receives: the device of `activations`, or of its
    stages if these are meta tensors.

    Raises:
        ValueError: the group carries no tensors of this device, or the device is not known.
    """
    parameters = (p for stage in stages.values() for p in stage.parameters())
    device = next((t.device for t in (*activations, *parameters) if not t.is_meta), None)
    carried = _carried(group)
    if device is None and len(carried) == 1:
        device = torch.device(carried[0])
    if device is None:
        raise ValueError(
            f"stages {sorted(stages)} have no parameters, and `activations` are meta tensors, so their device is not "
            f"known: expected `activations` on one of {', '.join(carried)}"
        )
    if device.type not in carried:
        raise ValueError(
            f"activations are on {device}, and this group carries tensors on {', '.join(carried)}: move stages, inputs "
            "and `activations` there, or use another backend"
        )
    return device


def _carried(group: dist.ProcessGroup | None) -> list[str]:
    """List the types of devices that the group's backends carry and this machine has."""
    if not dist.is_initialized():
        return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    types = carried_devices(group)
    return [device for device in types if device != "cuda" or len(types) == 1 or torch.cuda.is_available()]
