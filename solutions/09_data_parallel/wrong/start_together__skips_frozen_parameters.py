# expect: this parameter is frozen
def start_together(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    for tensor in [*(p for p in model.parameters() if p.requires_grad), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
