def keep_within_capacity(experts: torch.Tensor, capacity: int) -> torch.Tensor:
    """For each choice, the earlier choices of the same expert."""
    line = experts.T.reshape(-1)
    same = line[:, None] == line[None, :]
    earlier = same.tril(-1).sum(1)
    return (earlier < capacity).reshape(experts.shape[1], experts.shape[0]).T.contiguous()
