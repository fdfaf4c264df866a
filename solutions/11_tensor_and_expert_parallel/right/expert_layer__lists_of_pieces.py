def expert_layer(x: torch.Tensor, chosen: torch.Tensor, run_expert, experts: int) -> torch.Tensor:
    """Pieces per source and expert, put together per expert and taken apart again."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = experts // ranks
    positions = [(chosen == expert).nonzero().flatten() for expert in range(experts)]
    counts = torch.tensor([len(p) for p in positions])
    told = [torch.empty(each, dtype=torch.int64) for _ in range(ranks)]
    dist.all_to_all(told, list(counts.chunk(ranks)))
    sizes = torch.stack(told).tolist()
    sends, gets = counts.view(ranks, -1).sum(1).tolist(), [sum(row) for row in sizes]
    pieces = exchange_rows(x[torch.cat(positions)], sends, gets).split([n for row in sizes for n in row])
    done = [[None] * each for _ in range(ranks)]
    for local in range(each):
        theirs = [pieces[source * each + local] for source in range(ranks)]
        parts = run_expert(rank * each + local, torch.cat(theirs)).split([len(part) for part in theirs])
        for source in range(ranks):
            done[source][local] = parts[source]
    back = exchange_rows(torch.cat([part for row in done for part in row]), gets, sends)
    return back[torch.cat(positions).argsort()]
