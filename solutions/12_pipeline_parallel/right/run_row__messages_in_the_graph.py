class _Arrive(torch.autograd.Function):
    """Forward receives an activation; backward sends its gradient."""

    @staticmethod
    def forward(ctx, start, shape, i, sends):
        ctx.i, ctx.sends = i, sends
        x = torch.empty(shape)
        dist.recv(x, dist.get_rank() - 1, tag=i)
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        ctx.sends.append(dist.isend(g, dist.get_rank() - 1, tag=ctx.i))
        return torch.zeros(()), None, None, None


class _Leave(torch.autograd.Function):
    """Forward sends an activation; backward receives its gradient."""

    @staticmethod
    def forward(ctx, y, i, sends):
        ctx.i, ctx.shape = i, y.shape
        sends.append(dist.isend(y.detach(), dist.get_rank() + 1, tag=i))
        return torch.zeros(())

    @staticmethod
    def backward(ctx, g):
        got = torch.empty(ctx.shape)
        dist.recv(got, dist.get_rank() + 1, tag=ctx.i)
        return got, None, None


def run_row(row, stage, inputs, targets, loss_fn, shape):
    """Put messages into the graph: an autograd function is at each end."""
    rank, last, sends, losses, ends = dist.get_rank(), dist.get_world_size() - 1, [], [], {}
    start, count = torch.zeros((), requires_grad=True), sum(kind == "F" for kind, _ in row)
    for kind, i in row:
        if kind == "B":
            (ends.pop(i) / count if rank == last else ends.pop(i)).backward()
            continue
        y = stage(inputs[i] if rank == 0 else _Arrive.apply(start, shape, i, sends))
        ends[i] = loss_fn(y, targets[i]) if rank == last else _Leave.apply(y, i, sends)
        del y
        if rank == last:
            losses.append(float(ends[i].detach()))
    [work.wait() for work in sends]
    return sum(losses) / count if rank == last else None
