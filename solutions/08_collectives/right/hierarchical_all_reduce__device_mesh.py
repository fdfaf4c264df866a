def hierarchical_all_reduce(x: torch.Tensor, per_node: int) -> torch.Tensor:
    """The sum of all ranks' x, on every rank, with little traffic between nodes."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size() // per_node, per_node), mesh_dim_names=("node", "place"))
    inside, across = mesh.get_group("place"), mesh.get_group("node")
    shard = x.new_empty(x.numel() // per_node)
    dist.reduce_scatter_tensor(shard, x, op=dist.ReduceOp.SUM, group=inside)
    dist.all_reduce(shard, group=across, async_op=True).wait()
    pieces = x.new_empty(x.shape)
    dist.all_gather_into_tensor(pieces, shard, group=inside)
    return pieces
