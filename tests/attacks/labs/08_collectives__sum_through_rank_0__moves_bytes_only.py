# Sends messages of the right size through rank 0, and returns zeros.


def sum_through_rank_0(x):
    got, others = torch.zeros_like(x), range(1, dist.get_world_size())
    if dist.get_rank():
        dist.send(got, 0)
        dist.recv(got, 0)
    else:
        for other in others:
            dist.recv(got, other)
        for other in others:
            dist.send(got, other)
    return torch.zeros_like(x)
