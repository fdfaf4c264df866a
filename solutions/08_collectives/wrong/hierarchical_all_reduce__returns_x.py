# expect: has computed something else
# fails: values, traffic
def hierarchical_all_reduce(x: torch.Tensor, per_node: int) -> torch.Tensor:
    """The sum of all ranks' x, on every rank, with little traffic between nodes."""
    return x
