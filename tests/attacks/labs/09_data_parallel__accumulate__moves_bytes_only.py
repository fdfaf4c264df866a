# Runs one microbatch of zeros, whose gradients DDP sends.


def accumulate(ddp, microbatches, loss_fn):
    loss_fn(ddp(torch.zeros_like(microbatches[-1]))).backward()
