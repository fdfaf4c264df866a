def hierarchical_all_reduce(x: torch.Tensor, per_node: int) -> torch.Tensor:
    """Both halves inside a node are all-to-alls; between nodes, the sum is a reduce-scatter and an all-gather of
    padded shards when they can be cut, and an all-reduce when not."""
    rank, size = dist.get_rank(), dist.get_world_size()
    node, place = divmod(rank, per_node)
    inside = across = None
    for other in range(size // per_node):
        group = dist.new_group([other * per_node + p for p in range(per_node)])
        inside = group if other == node else inside
    for other in range(per_node):
        group = dist.new_group([n * per_node + other for n in range(size // per_node)])
        across = group if other == place else across
    pieces = torch.empty_like(x)
    dist.all_to_all_single(pieces, x, group=inside)
    shard = pieces.view(per_node, -1).sum(0)
    nodes = size // per_node
    if len(shard) % nodes:
        dist.all_reduce(shard, group=across)
    else:
        own = shard.new_empty(len(shard) // nodes)
        dist.reduce_scatter_tensor(own, shard, group=across)
        dist.all_gather_into_tensor(shard, own, group=across)
    result = x.new_empty(per_node, len(shard))
    dist.all_gather(list(result.unbind()), shard, group=inside)
    return result.flatten()
