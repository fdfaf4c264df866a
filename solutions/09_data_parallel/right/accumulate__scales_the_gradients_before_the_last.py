def accumulate(ddp: DistributedDataParallel, microbatches: list[torch.Tensor], loss_fn) -> None:
    """The gradient of the mean over all microbatches and ranks, with one all-reduce per gradient."""
    *early, last = microbatches
    seen = 0
    for x in early:
        with ddp.no_sync():
            (loss_fn(ddp(x)) * len(x)).backward()
        seen += len(x)
    total = seen + len(last)
    for parameter in ddp.parameters():
        if parameter.grad is not None:
            parameter.grad /= total
    (loss_fn(ddp(last)) * len(last) / total).backward()
