# expect: bytes that rank 0 of 4 sends
# fails: traffic
def average_gradients(model: torch.nn.Module) -> None:
    """Make every gradient the mean over all ranks."""
    for parameter in model.parameters():
        total = parameter.detach().clone()
        dist.all_reduce(total)
        assert torch.allclose(total / dist.get_world_size(), parameter, atol=1e-5)
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
