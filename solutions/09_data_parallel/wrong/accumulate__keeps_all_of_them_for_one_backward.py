# expect: kept for backward at one time
# fails: values
def accumulate(ddp: DistributedDataParallel, microbatches: list[torch.Tensor], loss_fn) -> None:
    """The gradient of the mean over all microbatches and ranks, with one all-reduce per gradient."""
    rows = sum(map(len, microbatches))
    with ddp.no_sync():
        losses = [loss_fn(ddp(x)) * len(x) / rows for x in microbatches[:-1]]
        if losses:
            sum(losses).backward()
    final = loss_fn(ddp(microbatches[-1]))
    (final * len(microbatches[-1]) / rows).backward()
