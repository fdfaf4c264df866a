def accumulate(ddp: DistributedDataParallel, microbatches: list[torch.Tensor], loss_fn) -> None:
    """The gradient of the mean over all microbatches and ranks, with one all-reduce per gradient."""
    from contextlib import nullcontext

    sizes = [x.shape[0] for x in microbatches]
    for number, x in enumerate(microbatches, start=1):
        with nullcontext() if number == len(microbatches) else ddp.no_sync():
            loss = loss_fn(ddp(x))
            loss.backward(torch.tensor(sizes[number - 1] / sum(sizes)))
