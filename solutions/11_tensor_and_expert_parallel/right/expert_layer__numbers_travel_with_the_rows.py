def expert_layer(x: torch.Tensor, chosen: torch.Tensor, run_expert, experts: int) -> torch.Tensor:
    """Rows are sorted by rank only, and each row's expert follows it in an exchange of its own."""
    ranks = dist.get_world_size()
    owner = chosen * ranks // experts
    order = torch.argsort(owner, stable=True)
    sends = [int((owner == rank).sum()) for rank in range(ranks)]
    counts = torch.empty(ranks, dtype=torch.int32)
    dist.all_to_all_single(counts, torch.tensor(sends, dtype=torch.int32))
    gets = counts.tolist()
    rows, wanted = exchange_rows(x[order], sends, gets), exchange_rows(chosen[order].int(), sends, gets)
    result = 0 * rows  # stays connected where no row has come
    for expert in wanted.unique().tolist():
        positions = (wanted == expert).nonzero()[:, 0]
        result = result.index_put((positions,), run_expert(expert, rows[positions]))
    result = exchange_rows(result, gets, sends)
    return torch.zeros_like(x).index_put((order,), result)
