def start_together(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    DistributedDataParallel(model)  # sends the state of rank 0 when it is made
