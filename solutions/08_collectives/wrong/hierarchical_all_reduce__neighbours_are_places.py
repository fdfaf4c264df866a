# expect: RankFailed on 6 ranks
def hierarchical_all_reduce(x: torch.Tensor, per_node: int) -> torch.Tensor:
    """The sum of all ranks' x, on every rank, with little traffic between nodes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    nodes = [range(place, size, per_node) for place in range(per_node)]
    places = [range(first, first + per_node) for first in range(0, size, per_node)]
    mine = []
    for ranks in nodes + places:
        group = dist.new_group(list(ranks))
        if rank in ranks:
            mine.append(group)
    inside, across = mine
    shard = torch.empty(len(x) // per_node)
    dist.reduce_scatter_tensor(shard, x, group=inside)
    dist.all_reduce(shard, group=across)
    whole = torch.empty_like(x)
    dist.all_gather_into_tensor(whole, shard, group=inside)
    return whole
