"""Pipeline parallelism."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    SplitPoint,
    pipeline,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from programs import program
from programs.costs import message

_WIDTH, _MICROBATCHES = 4, 4
_MESSAGE = message(2 * _WIDTH * 4)
"""A microbatch of two rows, forward or backward."""


def _layers(count):
    torch.manual_seed(1)
    return [nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh()) for _ in range(count)]


def _batch():
    generator = torch.Generator().manual_seed(7)
    return torch.randn(2 * _MICROBATCHES, _WIDTH, generator=generator), torch.zeros(2 * _MICROBATCHES, _WIDTH)


def _gradients(module):
    return [parameter.grad for parameter in module.parameters()]


class _Neighbours:
    """Messages of a stage of one rank, forward and backward."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.first, self.last = self.rank == 0, self.rank == self.world - 1

    def receive(self, source):
        x = torch.empty(2, _WIDTH)
        dist.recv(x, src=source)
        return x

    def forward(self, stage, x):
        x = x if self.first else self.receive(self.rank - 1).requires_grad_()
        y = stage(x)
        if not self.last:
            dist.send(y.detach(), dst=self.rank + 1)
        return x, y

    def backward(self, x, y, target):
        if self.last:
            (functional.mse_loss(y, target) / _MICROBATCHES).backward()
        else:
            y.backward(self.receive(self.rank + 1))
        if not self.first:
            dist.send(x.grad, dst=self.rank - 1)


@program(ranks=2)
def all_forward_and_then_all_backward():
    """Send activations forward for all microbatches, and gradients backward afterwards."""
    stage, messages = _layers(2)[dist.get_rank()], _Neighbours()
    xs, ys = (part.chunk(_MICROBATCHES) for part in _batch())
    done = [messages.forward(stage, x) for x in xs]
    for (x, y), target in zip(done, ys, strict=True):
        messages.backward(x, y, target)
    return _gradients(stage)


@program(ranks=3, cost=_MESSAGE * 4)
def one_microbatch_through_three_stages():
    """Pass one microbatch through all stages and its gradient back."""
    stage, messages = _layers(3)[dist.get_rank()], _Neighbours()
    inputs, targets = _batch()
    x, y = messages.forward(stage, inputs[:2])
    messages.backward(x, y, targets[:2])
    return _gradients(stage)


@program(ranks=2)
def one_forward_one_backward_by_hand():
    """Alternate forward and backward passes, with both messages of a boundary in one batch_isend_irecv."""
    rank, stage = dist.get_rank(), _layers(2)[dist.get_rank()]
    xs, ys = (part.chunk(_MICROBATCHES) for part in _batch())
    waiting = []
    if rank == 0:
        waiting.append((xs[0], stage(xs[0])))
        dist.send(waiting[0][1].detach(), dst=1)
        for x in (*xs[1:], None):
            gradient = torch.empty(2, _WIDTH)
            operations = [dist.P2POp(dist.irecv, gradient, 1)]
            if x is not None:
                waiting.append((x, stage(x)))
                operations.append(dist.P2POp(dist.isend, waiting[-1][1].detach(), 1))
            for handle in dist.batch_isend_irecv(operations):
                handle.wait()
            waiting.pop(0)[1].backward(gradient)
        return _gradients(stage)
    x = torch.empty(2, _WIDTH)
    dist.recv(x, src=0)
    for number, target in enumerate(ys):
        x.requires_grad_()
        (functional.mse_loss(stage(x), target) / _MICROBATCHES).backward()
        following = torch.empty(2, _WIDTH)
        operations = [dist.P2POp(dist.isend, x.grad, 0)]
        if number < _MICROBATCHES - 1:
            operations.append(dist.P2POp(dist.irecv, following, 0))
        for handle in dist.batch_isend_irecv(operations):
            handle.wait()
        x = following
    return _gradients(stage)


def _run(schedule, x, y):
    """One step of a schedule of torch.distributed.pipelining; the losses on the rank of the last stage."""
    losses = []
    if dist.get_rank() == 0:
        schedule.step(x)
    elif dist.get_rank() == dist.get_world_size() - 1:
        schedule.step(target=y, losses=losses)
    else:
        schedule.step()
    return [loss.item() for loss in losses]


def _stage(count, index):
    return PipelineStage(_layers(count)[index], index, count, torch.device("cpu"))


@program(ranks=3)
def gpipe():
    """Run hand-written stages with ScheduleGPipe."""
    stage = _stage(3, dist.get_rank())
    losses = _run(ScheduleGPipe(stage, _MICROBATCHES, loss_fn=functional.mse_loss), *_batch())
    return losses, _gradients(stage.submod)


@program(ranks=2)
def one_forward_one_backward():
    """Run hand-written stages with Schedule1F1B."""
    stage = _stage(2, dist.get_rank())
    losses = _run(Schedule1F1B(stage, _MICROBATCHES, loss_fn=functional.mse_loss), *_batch())
    return losses, _gradients(stage.submod)


@program(ranks=2)
def interleaved_stages():
    """Give each rank two stages with ScheduleInterleaved1F1B."""
    stages = [_stage(4, dist.get_rank() + offset) for offset in (0, 2)]
    losses = _run(ScheduleInterleaved1F1B(stages, _MICROBATCHES, loss_fn=functional.mse_loss), *_batch())
    return losses, [_gradients(stage.submod) for stage in stages]


@program(ranks=2)
def interleaved_without_bubbles():
    """Split backward passes into two parts with ScheduleInterleavedZeroBubble."""
    stages = [_stage(4, dist.get_rank() + offset) for offset in (0, 2)]
    losses = _run(ScheduleInterleavedZeroBubble(stages, _MICROBATCHES, loss_fn=functional.mse_loss), *_batch())
    return losses, [_gradients(stage.submod) for stage in stages]


def _traced(count):
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(count)))
    x, _ = _batch()
    cuts = {str(index): SplitPoint.BEGINNING for index in range(1, count)}
    traced = pipeline(model, mb_args=(x[:2],), split_spec=cuts)
    stage = traced.build_stage(dist.get_rank(), torch.device("cpu"))
    out = ScheduleGPipe(stage, _MICROBATCHES).step(*([x] if dist.get_rank() == 0 else []))
    return None if out is None else out.detach()


@program(ranks=2)
def traced_model_of_two_stages():
    """Trace a model with pipeline() and split it into two stages."""
    return _traced(2)


@program(ranks=3)
def traced_model_of_three_stages():
    """Trace a model with pipeline() and split it into three stages."""
    return _traced(3)


@program(ranks=4)
def pipeline_and_data_parallel():
    """Wrap each stage in DDP, with a group for the pipeline and one for the replicas."""
    pipelines, replicas = (
        [dist.new_group([0, 1]), dist.new_group([2, 3])],
        [dist.new_group([0, 2]), dist.new_group([1, 3])],
    )
    replica, place = divmod(dist.get_rank(), 2)
    stage = DistributedDataParallel(_layers(2)[place], process_group=replicas[place])
    x, target = (part[:2] * (1 + replica) for part in _batch())
    if place == 0:
        y = stage(x)
        dist.send(y.detach(), group=pipelines[replica], group_dst=1)
        gradient = torch.empty(2, _WIDTH)
        dist.recv(gradient, group=pipelines[replica], group_src=1)
        y.backward(gradient)
    else:
        x = torch.empty(2, _WIDTH)
        dist.recv(x, group=pipelines[replica], group_src=0)
        functional.mse_loss(stage(x.requires_grad_()), target).backward()
        dist.send(x.grad, group=pipelines[replica], group_dst=0)
    return _gradients(stage.module)


@program(ranks=2)
def evaluation_with_a_schedule():
    """Run only the forward passes of a schedule, with eval."""
    schedule = ScheduleGPipe(_stage(2, dist.get_rank()), _MICROBATCHES, loss_fn=functional.mse_loss)
    x, y = _batch()
    losses = []
    out = schedule.eval(x) if dist.get_rank() == 0 else schedule.eval(target=y, losses=losses)
    return None if out is None else out.detach(), [loss.item() for loss in losses]
