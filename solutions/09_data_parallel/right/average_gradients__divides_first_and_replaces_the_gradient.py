def average_gradients(model: torch.nn.Module) -> None:
    """Make every gradient the mean over all ranks."""
    size = dist.get_world_size()
    for _, parameter in reversed(list(model.named_parameters())):
        if parameter.requires_grad:
            mean = parameter.grad.detach() / size
            dist.all_reduce(mean)
            parameter.grad = mean
