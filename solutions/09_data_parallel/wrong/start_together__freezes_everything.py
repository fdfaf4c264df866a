# expect: parameters that require a gradient
def start_together(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.requires_grad_(False), src=0)
