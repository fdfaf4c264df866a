# expect: gradient of weight on rank 0
# fails: values, traffic
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
    microbatches = len(row) // 2
    kept, sends, total = {}, [], 0.0
    for kind, i in row:
        if kind == "F":
            if rank == 0:
                x = inputs[i]
            else:
                x = torch.empty(shape)
                dist.recv(x, rank - 1, tag=i)
                x.requires_grad_()
            output = stage(x)
            if rank < last:
                sends.append(dist.isend(output.detach(), rank + 1, tag=i))
            else:
                output = loss_fn(output, targets[i]) / microbatches
                total += output.item()
            kept[i] = x, output
        else:
            x, output = kept.pop(i)
            gradient = None
            if rank < last:
                gradient = torch.empty(shape)
                dist.recv(gradient, rank + 1, tag=i)
            output.backward(gradient)
            if rank > 0:
                sends.append(dist.isend(x.grad if gradient is None else gradient, rank - 1, tag=i))
    for work in sends:
        work.wait()
    return total if rank == last else None
