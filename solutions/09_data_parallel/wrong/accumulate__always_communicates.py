# expect: gradients were sent more than once
# fails: traffic
def accumulate(ddp: DistributedDataParallel, microbatches: list[torch.Tensor], loss_fn) -> None:
    """The gradient of the mean over all microbatches and ranks, with one all-reduce per gradient."""
    rows = sum(len(x) for x in microbatches)
    for x in microbatches:
        (loss_fn(ddp(x)) * len(x) / rows).backward()
