# expect: the rank's own gradient
# fails: values, traffic
def average_gradients(model: torch.nn.Module) -> None:
    """Make every gradient the mean over all ranks."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()
