# expect: gradient of layers.0.weight on rank 0 (2 ranks
# fails: values
def average_gradients(model: torch.nn.Module) -> None:
    """Make every gradient the mean over all ranks."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= 4
