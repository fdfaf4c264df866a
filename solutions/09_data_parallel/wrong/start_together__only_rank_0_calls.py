# expect: which rank 1 did not call
def start_together(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    if dist.get_rank() == 0:
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
