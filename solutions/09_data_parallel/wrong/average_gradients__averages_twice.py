# expect: divided by 2 once more
# fails: values
def average_gradients(model: torch.nn.Module) -> None:
    """Make every gradient the mean over all ranks."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
