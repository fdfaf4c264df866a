# expect: output on rank
def expert_layer(x: torch.Tensor, chosen: torch.Tensor, run_expert, experts: int) -> torch.Tensor:
    """Each token's row from its expert, wherever that is."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = experts // ranks
    order = torch.arange(len(chosen))
    counts = torch.bincount(chosen, minlength=experts)
    arriving = exchange_rows(counts, [each] * ranks, [each] * ranks).view(ranks, each)
    sends, gets = counts.view(ranks, each).sum(1).tolist(), arriving.sum(1).tolist()
    here = exchange_rows(x[order], sends, gets)
    expert_of = torch.arange(each).repeat(ranks).repeat_interleave(arriving.flatten())
    out = torch.empty_like(here)
    for expert in range(each):
        mine = expert_of == expert
        out[mine] = run_expert(rank * each + expert, here[mine])
    back = exchange_rows(out, gets, sends)
    return back[order.argsort()]
