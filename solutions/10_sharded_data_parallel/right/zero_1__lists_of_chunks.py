def zero_1(weights: torch.Tensor, optimizer_class, **options):
    """Train flat weights with optimizer states for this rank's piece only; returns `step(gradient)`."""
    ranks, rank, count = dist.get_world_size(), dist.get_rank(), weights.numel()
    length = math.ceil(count / ranks)

    def cut(flat):
        padded = torch.zeros(ranks * length)
        padded[:count] = flat
        return list(padded.split(length))

    mine = cut(weights)[rank].clone()
    updater = optimizer_class([mine], **options)

    def step(gradient):
        total = torch.zeros(length)
        dist.reduce_scatter(total, cut(gradient / ranks))
        mine.grad = total
        updater.step()
        whole = [torch.empty(length) for _ in range(ranks)]
        dist.all_gather(whole, mine)
        start = 0
        for part in whole:
            weights[start : start + length] = part[: max(0, count - start)]
            start += length

    return step
