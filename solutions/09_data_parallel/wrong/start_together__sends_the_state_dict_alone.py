# expect: this buffer is not in the
def start_together(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    for value in model.state_dict().values():
        dist.broadcast(value, src=0)
