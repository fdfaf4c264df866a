# expect: gradient of layers.0.weight on rank 0 (microbatches of [4, 2] rows)
# fails: values, traffic
def accumulate(ddp: DistributedDataParallel, microbatches: list[torch.Tensor], loss_fn) -> None:
    """The gradient of the mean over all microbatches and ranks, with one all-reduce per gradient."""
    rows = sum(len(x) for x in microbatches)
    with ddp.no_sync():
        for x in microbatches[:-1]:
            (loss_fn(ddp(x)) * len(x) / rows).backward()
    ddp.zero_grad()
    (loss_fn(ddp(microbatches[-1])) * len(microbatches[-1]) / rows).backward()
