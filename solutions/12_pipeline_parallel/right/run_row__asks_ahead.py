def run_row(
    row: list[tuple[str, int]],
    stage: torch.nn.Module,
    inputs: list[torch.Tensor],
    targets: list[torch.Tensor],
    loss_fn,
    shape: tuple[int, ...],
) -> float | None:
    """Do this rank's actions; gradients of the mean loss are in the stage's parameters afterwards."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    buffers = {action: torch.empty(shape) for action in row}
    asked = {}
    for kind, i in row:
        source = rank - 1 if kind == "F" else rank + 1
        if 0 <= source <= last:
            asked[kind, i] = dist.irecv(buffers[kind, i], source, tag=2 * i + (kind == "B"))
    kept, sends, losses = {}, [], []
    for kind, i in row:
        if (kind, i) in asked:
            asked.pop((kind, i)).wait()
        arrived = buffers.pop((kind, i))
        if kind == "F":
            x = arrived.requires_grad_() if rank else inputs[i]
            y = stage(x)
            if rank == last:
                y = loss_fn(y, targets[i])
                losses.append(y.detach())
            else:
                sends.append(dist.isend(y.detach(), rank + 1, tag=2 * i))
            kept[i] = x, y
        else:
            x, y = kept.pop(i)
            if rank == last:
                (y / (len(row) / 2)).backward()
            else:
                y.backward(arrived)
            if rank:
                sends.append(dist.isend(x.grad, rank - 1, tag=2 * i + 1))
    for work in sends:
        work.wait()
    return float(torch.stack(losses).mean()) if rank == last else None
