# expect: mean on rank 1
def start_together(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
