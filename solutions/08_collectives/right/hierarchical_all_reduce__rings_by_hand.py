def _scatter(chunks, ranks):
    at, size = ranks.index(dist.get_rank()), len(ranks)
    for step in range(size - 1):
        mine = chunks[(at - 2 - step) % size]
        got = torch.empty_like(mine)
        sent = dist.isend(chunks[(at - 1 - step) % size], ranks[(at + 1) % size])
        dist.recv(got, ranks[(at - 1) % size])
        sent.wait()
        mine += got


def _gather(chunks, ranks):
    at, size = ranks.index(dist.get_rank()), len(ranks)
    for step in range(size - 1):
        sent = dist.isend(chunks[(at - step) % size], ranks[(at + 1) % size])
        dist.recv(chunks[(at - step - 1) % size], ranks[(at - 1) % size])
        sent.wait()


def hierarchical_all_reduce(x: torch.Tensor, per_node: int) -> torch.Tensor:
    """The sum of all ranks' x, on every rank, with little traffic between nodes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    node, place = divmod(rank, per_node)
    inside, across = list(range(node * per_node, (node + 1) * per_node)), list(range(place, size, per_node))
    whole = x.clone()
    shards = whole.tensor_split(per_node)
    chunks = shards[place].tensor_split(len(across))
    _scatter(shards, inside)
    _scatter(chunks, across)
    _gather(chunks, across)
    _gather(shards, inside)
    return whole
