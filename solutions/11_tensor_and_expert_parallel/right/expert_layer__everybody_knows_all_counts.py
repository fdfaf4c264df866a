class _There(torch.autograd.Function):
    """An all-to-all of its own, with isend and irecv."""

    @staticmethod
    def forward(ctx, rows, sends, gets):
        ctx.sends, ctx.gets = sends, gets
        me = dist.get_rank()
        parts, got = rows.detach().split(sends), [rows.new_empty(n, rows.shape[1]) for n in gets]
        got[me] = parts[me].clone()
        works = []
        for other in range(dist.get_world_size()):
            if other != me and gets[other]:
                works.append(dist.irecv(got[other], other))
            if other != me and sends[other]:
                works.append(dist.isend(parts[other].contiguous(), other))
        for work in works:
            work.wait()
        return torch.cat(got)

    @staticmethod
    def backward(ctx, gradient):
        return _There.apply(gradient.contiguous(), ctx.gets, ctx.sends), None, None


def expert_layer(x: torch.Tensor, chosen: torch.Tensor, run_expert, experts: int) -> torch.Tensor:
    """All-gather the counts of all experts from all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = torch.bincount(chosen, minlength=experts)
    told = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(told, mine)
    table = torch.stack(told).view(ranks, ranks, -1)  # from, to, local expert
    order = chosen.argsort(stable=True)
    sends, gets = table[rank].sum(-1).tolist(), table[:, rank].sum(-1).tolist()
    here = _There.apply(x[order], sends, gets)
    local = torch.cat([torch.arange(table.shape[2]).repeat_interleave(row) for row in table[:, rank]])
    by_expert = local.argsort(stable=True)
    sizes = table[:, rank].sum(0).tolist()
    first = rank * table.shape[2]
    parts = [run_expert(first + e, part) for e, part in enumerate(here[by_expert].split(sizes)) if len(part)]
    out = torch.cat(parts) if parts else here[by_expert]
    return _There.apply(out[by_expert.argsort()], gets, sends)[order.argsort()]
