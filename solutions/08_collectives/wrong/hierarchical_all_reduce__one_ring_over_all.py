# expect: in another node and at another place
# fails: traffic
def hierarchical_all_reduce(x: torch.Tensor, per_node: int) -> torch.Tensor:
    """The sum of all ranks' x, on every rank, with little traffic between nodes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    nodes = [range(first, first + per_node) for first in range(0, size, per_node)]
    places = [range(place, size, per_node) for place in range(per_node)]
    mine = []
    for ranks in nodes + places:
        group = dist.new_group(list(ranks))
        if rank in ranks:
            mine.append(group)
    inside, across = mine
    whole = x.clone()
    dist.all_reduce(whole)
    return whole
