# expect: the rows and columns of the result are mixed up
def keep_within_capacity(experts: torch.Tensor, capacity: int) -> torch.Tensor:
    """Which choices find a place at their expert."""
    choices = experts.T.flatten()
    numbers = functional.one_hot(choices, 64).cumsum(0).gather(1, choices[:, None])
    return (numbers <= capacity).view(experts.shape)
