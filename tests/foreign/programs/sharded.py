"""Sharded data parallelism with torch's FSDP."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional

from programs import program


def _model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def _sharded(**options):
    model = _model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def _loss(model, step=0):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    x, y = torch.randn(4, 6, generator=generator), torch.randn(4, 2, generator=generator)
    return functional.mse_loss(model(x).float(), y)


def _train(model, steps=3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        loss = _loss(model, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _local(model):
    return torch.cat([parameter.to_local().detach().flatten() for parameter in model.parameters()])


@program(ranks=2)
def fully_shard_each_layer():
    """Apply fully_shard to each layer and to the model, and train with AdamW."""
    model = _sharded()
    return _train(model), _local(model)


@program(ranks=2)
def full_parameters_of_a_sharded_model():
    """Read whole parameters of a sharded model with full_tensor."""
    model = _sharded()
    _train(model, 1)
    return torch.cat([parameter.full_tensor().detach().flatten() for parameter in model.parameters()])


@program(ranks=2)
def parameters_in_bfloat16():
    """Compute in bfloat16 and reduce gradients in float32, with MixedPrecisionPolicy."""
    model = _sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    return _train(model), _local(model)


@program(ranks=2)
def clipping_of_a_sharded_model():
    """Clip the gradients of a sharded model by their global norm."""
    model = _sharded()
    _loss(model).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return norm.full_tensor().item(), [parameter.grad.to_local().tolist() for parameter in model.parameters()]


@program(ranks=2)
def weights_that_stay_gathered():
    """Keep the weights between forward and backward pass, with reshard_after_forward=False."""
    model = _sharded(reshard_after_forward=False)
    return _train(model), _local(model)


@program(ranks=2)
def accumulation_in_a_sharded_model():
    """Accumulate gradients without communication until the last microbatch."""
    model = _sharded()
    for micro in range(3):
        model.set_requires_gradient_sync(micro == 2)
        (_loss(model, micro) / 3).backward()
    return [parameter.grad.to_local().tolist() for parameter in model.parameters()]


@program(ranks=2)
def explicit_prefetching():
    """Name the layers to gather next with set_modules_to_forward_prefetch, and unshard the first one by hand."""
    model = _sharded()
    model[0].set_modules_to_forward_prefetch([model[2]])
    model[4].set_modules_to_backward_prefetch([model[2]])
    model.unshard()
    return _train(model), _local(model)


@program(ranks=2)
def initialization_on_the_meta_device():
    """Make the model on the meta device, shard it, and initialize the shards."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    for index, parameter in enumerate(model.parameters()):
        nn.init.constant_(parameter, 0.1 * (index + 1))
    return _train(model), _local(model)


@program(ranks=4, rounding="four ranks add gradients in another order")
def hybrid_sharding():
    """Replicate over one dimension of a mesh and shard over the other."""
    model = _sharded(mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    return _train(model), _local(model)


@program(ranks=2)
def offloaded_parameters():
    """Shard with CPUOffloadPolicy."""
    model = _sharded(offload_policy=CPUOffloadPolicy(pin_memory=False))
    return _train(model), _local(model)


@program(ranks=2)
def fsdp_1():
    """Wrap a model with FullyShardedDataParallel and an auto-wrap policy."""
    model = FullyShardedDataParallel(
        _model(), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=torch.device("cpu")
    )
    losses = _train(model)
    with FullyShardedDataParallel.summon_full_params(model):
        return losses, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@program(ranks=2)
def fsdp_1_that_shards_gradients_only():
    """Shard gradients and optimizer state, with SHARD_GRAD_OP and use_orig_params."""
    model = FullyShardedDataParallel(
        _model(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True, device_id=torch.device("cpu")
    )
    losses = _train(model)
    norm = model.clip_grad_norm_(1.0)
    return losses, norm.item()
