"""Data parallelism with torch's DistributedDataParallel."""

import contextlib
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate as composable_replicate
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from programs import program


def _model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def _batch(step=0, rows=4):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(rows, 6, generator=generator), torch.randn(rows, 3, generator=generator)


def _weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _train(ddp, steps=3, optimizer=None, start=0):
    optimizer = optimizer or torch.optim.SGD(ddp.parameters(), lr=0.1)
    losses = []
    for step in range(start, start + steps):
        x, y = _batch(step)
        optimizer.zero_grad()
        loss = functional.mse_loss(ddp(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, _weights(ddp)


@program(ranks=2)
def ddp_in_a_training_loop():
    """Wrap a model in DDP and train it for a few steps."""
    return _train(DistributedDataParallel(_model()))


@program(ranks=2)
def ddp_starts_from_the_weights_of_rank_0():
    """Initialize each rank differently, and let DDP broadcast the parameters of rank 0."""
    torch.manual_seed(dist.get_rank())
    return _weights(DistributedDataParallel(nn.Linear(5, 2)))


class _Block(nn.Module):
    def __init__(self, width=8, words=11):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(words, width), nn.LayerNorm(width)
        self.qkv, self.out, self.head = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, words)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


@program(ranks=2)
def small_gpt_with_accumulation_and_clipping():
    """Train a GPT block with tied weights: synchronize on the last microbatch, clip, and decay the learning rate."""
    torch.manual_seed(3)
    ddp = DistributedDataParallel(_Block())
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    norms = []
    for _ in range(3):
        for micro in range(2):
            ddp.require_backward_grad_sync = micro == 1
            tokens = torch.randint(11, (2, 6), generator=generator)
            (ddp(tokens[:, :-1], tokens[:, 1:]) / 2).backward()
        norms.append(nn.utils.clip_grad_norm_(ddp.parameters(), 0.5).item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
    return norms, _weights(ddp)


@program(ranks=2)
def accumulation_with_no_sync():
    """Accumulate gradients with no_sync, and synchronize once."""
    ddp = DistributedDataParallel(_model())
    for micro in range(3):
        x, y = _batch(micro)
        with ddp.no_sync() if micro < 2 else contextlib.nullcontext():
            functional.mse_loss(ddp(x), y).backward()
    return torch.cat([parameter.grad.flatten() for parameter in ddp.parameters()])


class _Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))

    def forward(self, x, branch):
        return self.branches[branch](x)


@program(ranks=2)
def branches_without_gradients():
    """Skip parts of the model on some ranks, with find_unused_parameters."""
    torch.manual_seed(2)
    ddp = DistributedDataParallel(_Branches(), find_unused_parameters=True)
    x, y = _batch()
    functional.mse_loss(ddp(x, dist.get_rank()), y).backward()
    return [None if parameter.grad is None else parameter.grad.tolist() for parameter in ddp.parameters()]


class _Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _model()

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


@program(ranks=2)
def static_graph_with_recomputation():
    """Recompute activations in a model whose graph DDP may treat as static."""
    return _train(DistributedDataParallel(_Recomputed(), static_graph=True))


@program(ranks=2)
def gradients_as_bucket_views():
    """Let gradients be views of small buckets, with gradient_as_bucket_view=True."""
    return _train(DistributedDataParallel(_model(), gradient_as_bucket_view=True, bucket_cap_mb=1e-4))


@program(ranks=2)
def gradients_in_float16():
    """Send gradients as float16 with fp16_compress_hook."""
    ddp = DistributedDataParallel(_model())
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return _train(ddp)


@program(ranks=2)
def power_sgd():
    """Send a low-rank approximation of the gradients with powerSGD_hook."""
    ddp = DistributedDataParallel(_model())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return _train(ddp, steps=5)


@program(ranks=2)
def a_hook_of_ones_own():
    """Register a communication hook that sums with an asynchronous all-reduce and divides in its future."""

    def halve(group, bucket):
        future = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / dist.get_world_size(group))

    ddp = DistributedDataParallel(_model())
    ddp.register_comm_hook(dist.group.WORLD, halve)
    return _train(ddp)


@program(ranks=2)
def buffers_of_batch_norm():
    """Train with batch normalization, whose running statistics DDP broadcasts from rank 0."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    ddp = DistributedDataParallel(model)
    losses, weights = _train(ddp)
    ddp(_batch(9)[0])
    return losses, weights, model[1].running_mean.tolist()


@program(ranks=2, refused="only work with GPU modules")
def synchronized_batch_norm():
    """Use SyncBatchNorm, which needs a GPU."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    return _train(DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model)))


def _train_unevenly(ddp, optimizer, joined):
    with joined:
        for step in range(2 + dist.get_rank()):
            x, y = _batch(step)
            optimizer.zero_grad()
            functional.mse_loss(ddp(x), y).backward()
            optimizer.step()
    return _weights(ddp)


@program(ranks=2)
def uneven_inputs_with_join():
    """Give ranks different numbers of batches, inside ddp.join."""
    ddp = DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    return _train_unevenly(ddp, optimizer, ddp.join())


@program(ranks=2)
def join_of_model_and_optimizer():
    """Join DDP and a ZeroRedundancyOptimizer for uneven inputs."""
    ddp = DistributedDataParallel(_model())
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)
    return _train_unevenly(ddp, optimizer, Join([ddp, optimizer]))


@program(ranks=2)
def post_local_sgd():
    """Average gradients for the first steps, and then the model every two steps."""
    ddp = DistributedDataParallel(_model())
    state = PostLocalSGDState(
        process_group=None,
        subgroup=dist.new_group([dist.get_rank()], use_local_synchronization=True),
        start_localSGD_iter=2,
    )
    ddp.register_comm_hook(state, post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(ddp.parameters(), lr=0.1), PeriodicModelAverager(period=2, warmup_steps=2)
    )
    return _train(ddp, steps=5, optimizer=optimizer)


@program(ranks=2)
def exponential_moving_average():
    """Keep an exponential moving average of a DDP model's weights."""
    ddp = DistributedDataParallel(_model())
    average = AveragedModel(ddp.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in range(3):
        _train(ddp, steps=1, start=step)
        average.update_parameters(ddp.module)
    return _weights(average.module), int(average.n_averaged)


@program(ranks=4)
def two_models_side_by_side():
    """Train two models, each with DDP in a group of its own."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    return _train(DistributedDataParallel(_model(), process_group=groups[dist.get_rank() // 2]))


@program(ranks=2)
def a_checkpoint_of_rank_0():
    """Save the model on rank 0, wait at a barrier, and load it on all ranks."""
    ddp = DistributedDataParallel(_model())
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    _train(ddp)
    if dist.get_rank() == 0:
        torch.save({"model": ddp.module.state_dict(), "step": 3}, f"{folder[0]}/last.pt")
    dist.barrier()
    state = torch.load(f"{folder[0]}/last.pt", map_location="cpu", weights_only=True)
    again = DistributedDataParallel(_model())
    again.module.load_state_dict(state["model"])
    return state["step"], _weights(again)


@program(ranks=2)
def autocast_to_bfloat16():
    """Train under autocast to bfloat16."""
    ddp = DistributedDataParallel(_model())
    x, y = _batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = functional.mse_loss(ddp(x).float(), y)
    loss.backward()
    return loss.item(), torch.cat([parameter.grad.flatten() for parameter in ddp.parameters()])


@program(ranks=2)
def frozen_layers():
    """Fine-tune the last layer while the others are frozen."""
    model = _model()
    model[0].requires_grad_(False)
    return _train(DistributedDataParallel(model))


@program(ranks=2)
def zero_redundancy_optimizer():
    """Shard the optimizer's state with ZeroRedundancyOptimizer, and collect it on rank 0."""
    ddp = DistributedDataParallel(_model())
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01)
    losses, weights = _train(ddp, optimizer=optimizer)
    optimizer.consolidate_state_dict(to=0)
    state = optimizer.state_dict()["state"] if dist.get_rank() == 0 else {}
    return losses, weights, [state[key]["exp_avg"].flatten() for key in sorted(state)]


@program(ranks=2, refused="exhausted (all )?inputs")
def join_that_stops_early():
    """Stop all ranks when the first one runs out of data, with throw_on_early_termination."""
    ddp = DistributedDataParallel(_model())
    with ddp.join(throw_on_early_termination=True):
        for step in range(2 + dist.get_rank()):
            x, y = _batch(step)
            functional.mse_loss(ddp(x), y).backward()


@program(ranks=2, refused="Expected to have finished reduction in the prior iteration")
def unused_parameters_without_the_option():
    """Leave parameters unused without find_unused_parameters."""
    torch.manual_seed(2)
    ddp = DistributedDataParallel(_Branches())
    for _ in range(2):
        x, y = _batch()
        functional.mse_loss(ddp(x, 0), y).backward()


@program(ranks=2, refused="appears not to match sizes of the same param")
def models_that_differ():
    """Give DDP models of different shapes on the ranks."""
    DistributedDataParallel(nn.Linear(4, 2 + dist.get_rank()))


@program(ranks=2)
def replicate():
    """Apply replicate, the composable form of DDP, to a module."""
    return _train(composable_replicate(_model()))


@program(ranks=2)
def compiled_ddp_model():
    """Compile a DDP model with the eager backend."""
    return _train(torch.compile(DistributedDataParallel(_model()), backend="eager"), steps=2)
