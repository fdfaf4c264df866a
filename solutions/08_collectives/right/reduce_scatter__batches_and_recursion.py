def travel(chunks, step):
    rank, size = dist.get_rank(), dist.get_world_size()
    if step == size - 1:
        return chunks[rank]
    out, into = chunks[(rank + size - 1 - step) % size], chunks[(rank + 2 * size - 2 - step) % size]
    got = torch.zeros_like(into)
    send = dist.P2POp(dist.isend, out, (rank + 1) % size)
    receive = dist.P2POp(dist.irecv, got, (rank + size - 1) % size)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    into.add_(got)
    return travel(chunks, step + 1)


def reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    return travel(torch.tensor_split(x.clone(), dist.get_world_size()), 0)
