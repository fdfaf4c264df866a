"""Run one rank's part of a pipeline step, for any schedule, with plain `torch.distributed` sends and receives."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from threeloops.training.cluster.program import compute, now
from threeloops.training.pipeline.check import check
from threeloops.training.pipeline.messages import Messages, Ordered, Tagged, device_of_messages
from threeloops.training.pipeline.schedule import Action, Kind, Schedule
from threeloops.training.pipeline.simulate import Durations, Timed
from threeloops.training.pipeline.stages import input_backward

__all__ = ["StepResult", "run_schedule"]


@dataclass(frozen=True)
class StepResult:
    """One rank's result of a step."""

    loss: Tensor | None
    """The mean over the microbatches, on the rank of the last stage."""
    row: list[Timed]
    """Its actions, and from when to when, on this rank's clock."""


def run_schedule(
    schedule: Schedule,
    stages: Mapping[int, nn.Module],
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    activations: Tensor | Sequence[Tensor],
    *,
    group: dist.ProcessGroup | None = None,
    durations: Durations | None = None,
    tags: bool | None = None,
) -> StepResult:
    """Execute this rank's row. Afterwards `grad` of each weight has grown by the gradient of the mean loss over the
    microbatches, as if one process had computed it.

    Every rank of the group calls it with the same schedule. A result leaves when its action ends, and an input is
    requested one action ahead. Sends are waited for late: an activation's when its gradient arrives, a gradient's at
    the end. If the first and the last stage name a `tied_weight` and are on different ranks, their copies end with the
    sum of both gradients. That takes one more message each way, which the simulator does not include.

    On GPUs use NCCL. Call `torch.cuda.set_device` first, and keep stages, inputs, targets and `activations` on that
    device. NCCL ignores tags, so messages go in rounds that all ranks share (see `messages`). The call may return
    before the GPU is done, and the times of actions say when the host handed them to the GPU. Not measured on a GPU:
    the rounds were tested on gloo, and on the virtual cluster with ranks that wait for each batch of messages, as
    NCCL's stream does.

    Args:
        stages: this rank's stages, by number. Each takes one tensor, and returns one.
        inputs: inputs of the first stage, one per microbatch. Only its rank uses them.
        targets: targets of the loss, one per microbatch. Only the rank of the last stage uses them.
        loss: a function of the last stage's output and a target, a mean over the microbatch.
        activations: tensors like those that each stage hands to the next (shape, dtype, device), or one if all are
            alike.
        durations: time to charge for each action (on real processes, to sleep), besides what the stages do.
        tags: whether the backend matches messages by tag. By default it does for tensors on the CPU and not for others.

    Raises:
        IllegalSchedule: see `check`.
        ValueError: an argument does not fit the schedule, a stage's output differs from `activations`, or the group
            does not carry tensors of this device.
    """
    run = _StepState(schedule, stages, inputs, targets, loss, activations, group, tags)
    return run.execute({kind: durations.seconds(kind, schedule.stages) for kind in _KINDS} if durations else {})


_KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")


class _StepState:
    """The state of a step: arrived messages, messages in flight, and results that later actions need."""

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, nn.Module],
        inputs: Sequence[Tensor],
        targets: Sequence[Tensor],
        loss: Callable[[Tensor, Tensor], Tensor],
        activations: Tensor | Sequence[Tensor],
        group: dist.ProcessGroup | None,
        tags: bool | None,
    ) -> None:
        check(schedule)
        self.schedule = schedule
        self.stages = stages
        self.group = group
        self.inputs = inputs
        self.targets = targets
        self.loss = loss
        self.last = schedule.stages - 1
        self.activations = [activations] * self.last if isinstance(activations, Tensor) else list(activations)
        self.rank = _rank(schedule, group)
        self._check_arguments()
        self.device = device_of_messages(self.activations, stages, group)
        self.tags = self.device.type == "cpu" if tags is None else tags
        self.losses: list[Tensor] = []
        self.forwards: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        """Input and output, by stage and microbatch."""
        self.owed: dict[tuple[int, int], Callable[[], None]] = {}
        """Functions that compute weight gradients later."""

    def execute(self, seconds: Mapping[Kind, list[float]]) -> StepResult:
        row = self.schedule.rows[self.rank]
        timed = []
        kind_of_messages = Tagged if self.tags else Ordered
        with _tied(self.schedule, self.stages, self.rank, self.group):
            messages: Messages = kind_of_messages(self.schedule, self.rank, self.group, self.activations, self.device)
            for position, action in enumerate(row):
                messages.look_ahead(row[position : position + 2])
                given = messages.receive(action)
                start = now()
                if seconds:
                    compute(seconds[action.kind][action.stage], f"{action.name} {action.microbatch}")
                result = self._perform(action, given)
                timed.append(Timed(action, start, now()))
                messages.send(action, result)
            messages.finish()
        return StepResult(torch.stack(self.losses).sum() if self.losses else None, timed)

    def _perform(self, action: Action, given: Tensor | None) -> Tensor | None:
        """The result of an action, for the stage that needs it."""
        kind, stage, microbatch = action
        if kind == "F":
            return self._forward(stage, microbatch, given)
        if kind == "W":
            self.owed.pop((stage, microbatch))()
            return None
        x, output = self.forwards.pop((stage, microbatch))
        if kind == "B":
            if output.requires_grad:
                torch.autograd.backward([output], [given])
            gradient = x.grad
        else:
            weights = [p for p in self.stages[stage].parameters() if p.requires_grad]
            gradient, self.owed[stage, microbatch] = input_backward(output, given, x, weights)
        return torch.zeros_like(x) if gradient is None and stage else gradient

    def _forward(self, stage: int, microbatch: int, given: Tensor | None) -> Tensor | None:
        x = self.inputs[microbatch].detach() if given is None else given.requires_grad_()
        output = self.stages[stage](x)
        if stage < self.last:
            _check_like(output, self.activations[stage], stage)
        else:
            output = self.loss(output, self.targets[microbatch])
            if output.numel() != 1:
                raise ValueError(f"a loss of shape {tuple(output.shape)}: expected one number, the microbatch's mean")
            output = output / self.schedule.microbatches
            self.losses.append(output.detach())
        self.forwards[stage, microbatch] = x, output
        return output.detach()

    def _check_arguments(self) -> None:
        schedule = self.schedule
        owned = self.schedule.stages_of(self.rank)
        if sorted(self.stages) != owned:
            raise ValueError(f"rank {self.rank} was given stages {sorted(self.stages)}: its schedule has {owned} there")
        for stage, name, given in ((0, "inputs", self.inputs), (self.last, "targets", self.targets)):
            if stage in owned and len(given) != schedule.microbatches:
                raise ValueError(f"{len(given)} {name}: expected {schedule.microbatches}, one per microbatch")
        if len(self.activations) != self.last:
            raise ValueError(
                f"{len(self.activations)} activations for {schedule.stages} stages: expected {self.last}, one for each "
                "stage but the last, or a single tensor if all are alike"
            )
        for stage, like in enumerate(self.activations):
            if not like.is_floating_point():
                raise ValueError(f"stage {stage} hands on {like.dtype}: expected a floating dtype, which has gradients")


def _rank(schedule: Schedule, group: dist.ProcessGroup | None) -> int:
    """This process's rank in the schedule, which is its rank in the group."""
    if not dist.is_initialized():
        if schedule.ranks == 1:
            return 0
        raise RuntimeError("run_schedule needs a process group: call torch.distributed.init_process_group() first")
    rank = dist.get_rank(group)
    size = dist.get_world_size(group)
    if rank < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in this group: call run_schedule on its ranks only")
    if size != schedule.ranks:
        raise ValueError(f"a schedule of {schedule.ranks} ranks in a group of {size}: expected as many")
    return rank


def _check_like(output: Tensor, like: Tensor, stage: int) -> None:
    actual = _description(output, like.is_meta) if isinstance(output, Tensor) else type(output).__name__
    if actual != (announced := _description(like, like.is_meta)):
        raise ValueError(
            f"stage {stage} gave {actual}: `activations` announced {announced}, and the next rank waits for as many "
            "bytes"
        )


def _description(tensor: Tensor, anywhere: bool) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}" + ("" if anywhere else f" on {tensor.device}")


@contextmanager
def _tied(
    schedule: Schedule, stages: Mapping[int, nn.Module], rank: int, group: dist.ProcessGroup | None
) -> Iterator[None]:
    """Give both copies of one weight, in the first and the last stage, the sum of what both contribute (Shoeybi et al.
    2019, "Megatron-LM": its embedding group)."""
    ends = schedule.placement[0], schedule.placement[-1]
    mine = {ends[0]: 0, ends[1]: schedule.stages - 1}.get(rank)
    weight = None if mine is None else getattr(stages[mine], "tied_weight", None)
    if weight is None or not weight.requires_grad or ends[0] == ends[1]:
        yield
        return
    before = weight.grad
    weight.grad = None
    yield
    own = torch.zeros_like(weight) if weight.grad is None else weight.grad
    other = torch.empty_like(own)
    peer = sum(ends) - rank
    exchange = [
        dist.P2POp(call, tensor, group=group, group_peer=peer)
        for call, tensor in ((dist.isend, own), (dist.irecv, other))
    ]
    for work in dist.batch_isend_irecv(exchange):  # not one after the other, which would deadlock on NCCL
        work.wait()
    both = own + other  # the same on both ranks, to the last bit
    weight.grad = both if before is None else before + both
