def start_together(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    here = [tensor.detach() for tensor in [*model.parameters(), *model.buffers()]]
    box = [here]
    dist.broadcast_object_list(box, src=0)
    for tensor, value in zip(here, box[0], strict=True):
        tensor.copy_(value)
