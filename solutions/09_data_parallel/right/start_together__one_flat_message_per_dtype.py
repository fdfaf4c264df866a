def start_together(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    kinds = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        kinds.setdefault(tensor.dtype, []).append(tensor.detach())
    for tensors in kinds.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.broadcast(flat, src=0)
        for tensor, values in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(values.view(tensor.shape))
