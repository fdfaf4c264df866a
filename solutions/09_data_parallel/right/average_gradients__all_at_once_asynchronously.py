def average_gradients(model: torch.nn.Module) -> None:
    """Make every gradient the mean over all ranks."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    works = [dist.all_reduce(g, dist.ReduceOp.AVG, async_op=True) for g in gradients]
    for work in works:
        work.wait()
