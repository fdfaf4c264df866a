"""DTensor and torch's tensor-parallel modules."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor import zeros as distributed_zeros
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

from programs import program


def _mesh(name="tp"):
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=(name,))


class _FeedForward(nn.Module):
    def __init__(self, width=4, hidden=8):
        super().__init__()
        torch.manual_seed(1)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(functional.silu(self.up(self.norm(x))))


def _input(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


@program(ranks=2)
def sharded_and_whole_again():
    """Shard a tensor by rows with distribute_tensor, and read it with full_tensor."""
    x = distribute_tensor(torch.arange(8.0).reshape(4, 2), _mesh(), [Shard(0)])
    return x.to_local().tolist(), x.full_tensor().tolist()


@program(ranks=2)
def redistribution():
    """Redistribute from rows to whole copies and to columns."""
    x = distribute_tensor(torch.arange(16.0).reshape(4, 4), _mesh(), [Shard(0)])
    columns = x.redistribute(placements=[Shard(1)])
    return x.redistribute(placements=[Replicate()]).to_local().tolist(), columns.to_local().tolist()


@program(ranks=2)
def partial_sums():
    """Turn partial sums into a whole tensor and into shards."""
    x = DTensor.from_local(torch.arange(4.0) * (1 + dist.get_rank()), _mesh(), [Partial()])
    whole, shards = x.redistribute(placements=[Replicate()]), x.redistribute(placements=[Shard(0)])
    return whole.to_local().tolist(), shards.to_local().tolist()


@program(ranks=3)
def uneven_shards():
    """Shard five rows over three ranks."""
    x = distribute_tensor(torch.arange(10.0).reshape(5, 2), _mesh(), [Shard(0)])
    return x.to_local().tolist(), (x * 2).full_tensor().tolist()


@program(ranks=2)
def product_of_sharded_matrices():
    """Multiply a matrix sharded by columns with one sharded by rows."""
    mesh = _mesh()
    a = distribute_tensor(_input(3, 4), mesh, [Shard(1)])
    b = distribute_tensor(_input(4, 3), mesh, [Shard(0)])
    return (a @ b).full_tensor()


@program(ranks=2)
def reductions_over_shards():
    """Sum, average and take the maximum over a sharded tensor."""
    x = distribute_tensor(torch.arange(8.0).reshape(4, 2), _mesh(), [Shard(0)])
    return [value.full_tensor().tolist() for value in (x.sum(), x.mean(dim=0), x.max(), x.norm())]


@program(ranks=2)
def feed_forward_by_columns_and_rows():
    """Parallelize a feed-forward layer with ColwiseParallel and RowwiseParallel, and run it backward."""
    model = parallelize_module(_FeedForward(), _mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    out = model(_input(3, 4))
    out.square().sum().backward()
    return out.detach(), model.up.weight.grad.to_local(), model.down.weight.grad.to_local(), model.norm.weight.grad


@program(ranks=2)
def sequence_parallel_norm():
    """Shard the sequence around the norm with SequenceParallel and PrepareModuleInput."""
    plan = {
        "norm": SequenceParallel(sequence_dim=1),
        "up": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    }
    model = parallelize_module(_FeedForward(), _mesh(), plan)
    model = parallelize_module(
        model,
        _mesh(),
        {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False)},
    )
    out = model(_input(2, 4, 4))
    return out.full_tensor().detach()


@program(ranks=2)
def parallel_embedding_and_head():
    """Shard an embedding by rows and the head by columns, and gather the logits."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10))
    plan = {
        "0": RowwiseParallel(input_layouts=Replicate()),
        "1": ColwiseParallel(output_layouts=Replicate()),
    }
    model = parallelize_module(model, _mesh(), plan)
    logits = model(torch.tensor([[0, 7, 9], [4, 5, 1]]))
    logits.sum().backward()
    return logits.detach(), model[0].weight.grad.full_tensor()


@program(ranks=2)
def parallel_loss():
    """Compute cross-entropy on logits sharded over the vocabulary, with loss_parallel."""
    logits = distribute_tensor(_input(4, 6), _mesh(), [Shard(1)]).requires_grad_()
    with loss_parallel():
        loss = functional.cross_entropy(logits, torch.tensor([0, 5, 2, 3]))
        loss.backward()
    return loss.full_tensor().item() if isinstance(loss, DTensor) else loss.item(), logits.grad.to_local()


@program(
    ranks=4,
    rounding="sums over two groups are added in another order",
)
def fully_sharded_and_tensor_parallel():
    """Combine tensor parallelism and fully_shard on a two-dimensional mesh."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(_FeedForward(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(2):
        loss = (model(_input(2, 4) * (1 + mesh["dp"].get_local_rank() + step))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model.up.weight.full_tensor().detach()


@program(ranks=2)
def clipping_of_distributed_gradients():
    """Clip gradients that are DTensors by their common norm."""
    model = parallelize_module(_FeedForward(), _mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model(_input(3, 4)).square().sum().backward()
    sharded = [parameter for parameter in model.parameters() if isinstance(parameter, DTensor)]
    norm = nn.utils.clip_grad_norm_(sharded, 0.5)
    return norm.full_tensor().item(), sharded[0].grad.to_local()


@program(ranks=2)
def distributed_module():
    """Replicate a module with distribute_module, and shard its input."""
    mesh = _mesh()
    torch.manual_seed(3)
    model = distribute_module(nn.Linear(4, 2), mesh)
    out = model(distribute_tensor(_input(4, 4), mesh, [Shard(0)]))
    out.sum().backward()
    return out.full_tensor().detach(), model.weight.grad.full_tensor()


@program(ranks=2)
def distributed_random_numbers():
    """Make sharded tensors of zeros and dropout masks with the DTensor constructors."""
    x = distributed_zeros(4, 2, device_mesh=_mesh(), placements=[Shard(0)]) + 1
    torch.manual_seed(5)
    dropped = functional.dropout(x, 0.5)
    return x.full_tensor().tolist(), sorted(set(dropped.full_tensor().flatten().tolist()))
