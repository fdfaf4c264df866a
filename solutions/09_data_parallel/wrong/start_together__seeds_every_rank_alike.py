# expect: layers.0.weight on rank 0
def start_together(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape)
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
