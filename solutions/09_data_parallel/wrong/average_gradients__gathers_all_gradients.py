# expect: bytes that rank 0 of 4 sends
# fails: traffic
def average_gradients(model: torch.nn.Module) -> None:
    """Make every gradient the mean over all ranks."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            everyone = [torch.empty_like(parameter.grad) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, parameter.grad)
            parameter.grad = torch.stack(everyone).mean(0)
