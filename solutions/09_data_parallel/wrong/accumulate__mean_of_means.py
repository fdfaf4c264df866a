# expect: every microbatch counts the same here
# fails: values, traffic
def accumulate(ddp: DistributedDataParallel, microbatches: list[torch.Tensor], loss_fn) -> None:
    """The gradient of the mean over all microbatches and ranks, with one all-reduce per gradient."""
    with ddp.no_sync():
        for x in microbatches[:-1]:
            (loss_fn(ddp(x)) / len(microbatches)).backward()
    (loss_fn(ddp(microbatches[-1])) / len(microbatches)).backward()
