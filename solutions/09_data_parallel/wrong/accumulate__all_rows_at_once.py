# expect: rows that loss_fn(ddp(x)) got in each call
# fails: values
def accumulate(ddp: DistributedDataParallel, microbatches: list[torch.Tensor], loss_fn) -> None:
    """The gradient of the mean over all microbatches and ranks, with one all-reduce per gradient."""
    loss_fn(ddp(torch.cat(microbatches))).backward()
