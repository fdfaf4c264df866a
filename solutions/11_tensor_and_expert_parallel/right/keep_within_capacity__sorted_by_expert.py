def keep_within_capacity(experts: torch.Tensor, capacity: int) -> torch.Tensor:
    """A stable sort; the place is the distance to the first choice of the same expert."""
    in_order = experts.T.flatten()
    values, indices = in_order.sort(stable=True)
    place = torch.empty_like(in_order)
    place[indices] = torch.arange(len(in_order)) - torch.searchsorted(values, values)
    return (place < capacity).view(experts.shape[::-1]).T
