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
    count = sum(kind == "F" for kind, _ in row)
    weights = list(stage.parameters())
    sums = [torch.zeros_like(weight) for weight in weights]
    held, works, total = {}, [], 0.0
    for kind, i in row:
        if kind == "F":
            x = inputs[i].clone() if rank == 0 else torch.empty(shape)
            if rank > 0:
                dist.irecv(x, rank - 1, tag=i).wait()
            x.requires_grad_()
            y = stage(x)
            if rank == last:
                y = loss_fn(y, targets[i])
                total += float(y.detach()) / count
            else:
                works.append(dist.isend(y.detach().clone(), rank + 1, tag=i))
            held[i] = x, y
            continue
        x, y = held.pop(i)
        if rank == last:
            arrived = torch.tensor(1.0 / count)
        else:
            arrived = torch.empty(shape)
            dist.recv(arrived, rank + 1, tag=i)
        of_x, *found = torch.autograd.grad(y, [x, *weights], arrived)
        for sum_, each in zip(sums, found, strict=True):
            sum_ += each
        if rank > 0:
            works.append(dist.isend(of_x.contiguous(), rank - 1, tag=i))
    for weight, sum_ in zip(weights, sums, strict=True):
        weight.grad = sum_
    for work in works:
        work.wait()
    return total if rank == last else None
