# expect: the rank's own gradient
# fails: values, traffic
def average_gradients(model: torch.nn.Module) -> None:
    """Make every gradient the mean over all ranks."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            total = parameter.grad.clone()
            dist.all_reduce(total)
            total /= dist.get_world_size()
