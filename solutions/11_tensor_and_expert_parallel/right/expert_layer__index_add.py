def expert_layer(x: torch.Tensor, chosen: torch.Tensor, run_expert, experts: int) -> torch.Tensor:
    """Each rank's rows are selected with masks, and put back with index_add; experts travel as small numbers."""
    ranks = dist.get_world_size()
    each = experts // ranks
    owner = torch.div(chosen, each, rounding_mode="floor")
    places = [torch.nonzero(owner == r).flatten() for r in range(ranks)]
    going = torch.cat(places)
    sends = [len(p) for p in places]
    counts = torch.empty(ranks, dtype=torch.int64)
    dist.all_to_all_single(counts, torch.tensor(sends))
    gets = counts.tolist()
    labels = exchange_rows(chosen[going], sends, gets)
    rows = exchange_rows(x.index_select(0, going), sends, gets)
    out = rows * 0
    for expert in labels.unique().tolist():
        which = torch.nonzero(labels == expert).flatten()
        out = out.index_add(0, which, run_expert(expert, rows.index_select(0, which)))
    back = exchange_rows(out, gets, sends)
    return torch.zeros_like(x).index_add(0, going, back)
