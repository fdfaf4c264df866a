# expect: as an optimizer
def start_together(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            values = parameter.detach().clone()
            dist.broadcast(values, src=0)
            setattr(module, name, torch.nn.Parameter(values))
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
