def lost(weights: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Where an update that is not zero leaves a 16-bit weight as it was: the sum lies between the two midpoints."""
    if weights.shape != updates.shape:
        raise ValueError(f"weights of shape {tuple(weights.shape)}, updates of shape {tuple(updates.shape)}")
    infinity = torch.full_like(weights, math.inf)
    here = weights.double()
    above = (here + torch.nextafter(weights, infinity).double()) / 2
    below = (here + torch.nextafter(weights, -infinity).double()) / 2
    total = (weights.float() + updates).double()
    even = weights.view(torch.int16) % 2 == 0
    inside = torch.where(even, (total >= below) & (total <= above), (total > below) & (total < above))
    return inside & (updates != 0)
