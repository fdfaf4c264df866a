"""Process groups and device meshes."""

import datetime

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from programs import program


def _total(x, group=None):
    x = torch.tensor([float(x)])
    dist.all_reduce(x, group=group)
    return x.item()


@program(ranks=4)
def two_halves():
    """Make two groups with new_group, and reduce within the rank's own."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[dist.get_rank() // 2]
    return _total(dist.get_rank(), mine), dist.get_rank(mine), dist.get_world_size(mine)


@program(ranks=4)
def subgroups_of_equal_size():
    """Cut the world into subgroups with new_subgroups."""
    group, groups = dist.new_subgroups(2)
    return _total(dist.get_rank(), group), len(groups)


@program(ranks=4)
def subgroups_by_enumeration():
    """Name the ranks of each subgroup with new_subgroups_by_enumeration."""
    group, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    return _total(dist.get_rank(), group), dist.get_process_group_ranks(group)


@program(ranks=3)
def ranks_within_a_group():
    """Translate between ranks of the world and of a group."""
    group = dist.new_group([2, 0])
    if dist.get_rank() == 1:
        return dist.get_rank(group)
    return (
        dist.get_process_group_ranks(group),
        [dist.get_group_rank(group, rank) for rank in (0, 2)],
        [dist.get_global_rank(group, place) for place in (0, 1)],
        _total(dist.get_rank(), group),
    )


@program(ranks=3)
def root_within_a_group():
    """Name the root of a broadcast by its rank in the world, and by its rank in the group."""
    group = dist.new_group([1, 2])
    x, y = torch.tensor([float(dist.get_rank())]), torch.tensor([float(dist.get_rank())])
    if dist.get_rank():
        dist.broadcast(x, src=2, group=group)
        dist.broadcast(y, group_src=0, group=group)
    return x.item(), y.item()


@program(ranks=2)
def a_group_with_a_named_backend():
    """Make a second group with backend="gloo", as scripts do for objects on the CPU."""
    group = dist.new_group(backend="gloo")
    return _total(dist.get_rank() + 1, group), dist.get_backend(group)


@program(ranks=3)
def local_synchronization():
    """Make a group without a call from the other ranks, with use_local_synchronization."""
    if dist.get_rank() == 2:
        return None
    return _total(dist.get_rank() + 1, dist.new_group([0, 1], use_local_synchronization=True))


@program(ranks=4)
def hierarchical_all_reduce():
    """Reduce within each node, between the nodes, and broadcast within each node."""
    rank = dist.get_rank()
    nodes, leaders = [dist.new_group([0, 1]), dist.new_group([2, 3])], dist.new_group([0, 2])
    x = torch.arange(3.0) + rank
    dist.reduce(x, dst=rank // 2 * 2, group=nodes[rank // 2])
    if rank % 2 == 0:
        dist.all_reduce(x, group=leaders)
    dist.broadcast(x, src=rank // 2 * 2, group=nodes[rank // 2])
    return x.tolist()


@program(ranks=2)
def a_group_of_one():
    """Use collectives in a group that has only this rank."""
    groups = [dist.new_group([rank]) for rank in range(2)]
    return _total(dist.get_rank() + 5, groups[dist.get_rank()])


@program(ranks=2)
def a_destroyed_group():
    """Destroy a group, and go on with the others."""
    group = dist.new_group([0, 1])
    before = _total(1, group)
    dist.destroy_process_group(group)
    return before, _total(2), dist.get_world_size()


@program(ranks=4)
def mesh_of_one_dimension():
    """Make a one-dimensional device mesh, and use its group."""
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    return _total(dist.get_rank(), mesh.get_group()), mesh.get_local_rank(), mesh.mesh.tolist()


@program(ranks=4)
def mesh_of_two_dimensions():
    """Cut a two-dimensional mesh into data-parallel and tensor-parallel groups."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"], mesh["tp"]
    return (
        mesh.get_coordinate(),
        [_total(dist.get_rank(), each.get_group()) for each in (dp, tp)],
        [dist.get_process_group_ranks(each.get_group()) for each in (dp, tp)],
    )


@program(ranks=4)
def mesh_that_is_flattened():
    """Flatten two dimensions of a mesh into one group."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    flat = mesh["dp", "cp"]._flatten("dp_cp")
    return flat.size(), _total(dist.get_rank(), flat.get_group())


@program(ranks=2, refused="not safe to split any process groups")
def split_group():
    """Split the world with split_group, which only NCCL has."""
    group = dist.split_group(split_ranks=[[0], [1]])
    return _total(1, group)


@program(ranks=2, refused="a store has only the keys that its own rank set", gloo_runs=True)
def the_store():
    """Exchange keys through the store of the process group."""
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    store.set(f"address {rank}", f"node{rank}:1234")
    dist.barrier()
    return store.get(f"address {1 - rank}").decode(), store.add("count", 0)


@program(ranks=4)
def mesh_from_a_group():
    """Make a device mesh from an existing process group, with DeviceMesh.from_group."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mesh = DeviceMesh.from_group(pairs[dist.get_rank() // 2], "cpu")
    return mesh.mesh.tolist(), _total(dist.get_rank(), mesh.get_group())


@program(ranks=4)
def three_dimensions_of_a_mesh():
    """Ask a three-dimensional mesh with a dimension of size one for its groups."""
    mesh = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    return [_total(dist.get_rank(), mesh.get_group(name)) for name in ("pp", "dp", "tp")], mesh.get_local_rank("tp")


@program(ranks=2)
def groups_with_their_own_timeout():
    """Make a group with a timeout, and wait with a timeout."""
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=30))
    x = torch.ones(2)
    dist.all_reduce(x, group=group, async_op=True).wait(timeout=datetime.timedelta(seconds=30))
    return x.tolist()


@program(ranks=2)
def questions_about_the_world():
    """Ask for the backend, the rank and the size, as logging code does."""
    backend = dist.get_backend()
    return (
        backend in dist.Backend.backend_list, dist.is_available(), dist.is_initialized(), dist.get_rank(),
        dist.get_world_size(), dist.get_node_local_rank(), dist.group.WORLD.size(), dist.group.WORLD.rank(),
    )  # fmt: skip
