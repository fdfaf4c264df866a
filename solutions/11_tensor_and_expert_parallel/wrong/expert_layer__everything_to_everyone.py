# expect: so it should be from
# fails: traffic, gradients
def expert_layer(x: torch.Tensor, chosen: torch.Tensor, run_expert, experts: int) -> torch.Tensor:
    """Each token's row from its expert, wherever that is."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = experts // ranks
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(sizes, torch.tensor([len(x)]))
    most = int(max(sizes))
    padded, asked = x.new_zeros(most, x.shape[1]), torch.full((most,), -1)
    padded[: len(x)], asked[: len(x)] = x, chosen
    rows, wanted = [torch.empty_like(padded) for _ in range(ranks)], [torch.empty_like(asked) for _ in range(ranks)]
    dist.all_gather(rows, padded.detach())
    dist.all_gather(wanted, asked)
    rows, wanted = torch.cat(rows), torch.cat(wanted)
    out = torch.zeros_like(rows)
    for expert in range(rank * each, (rank + 1) * each):
        out[wanted == expert] = run_expert(expert, rows[wanted == expert])
    dist.all_reduce(out)
    return out[rank * most : rank * most + len(x)]
