# expect: steps on rank 0
def start_together(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    for tensor in [*model.parameters(), *model.buffers()]:
        values = tensor.detach().float()
        dist.broadcast(values, src=0)
        tensor.data = values
