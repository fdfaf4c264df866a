# expect: own_qkv of rank 0
# fails: values, memory
def cut_attention(
    qkv: torch.Tensor, output: torch.Tensor, heads: int, kv_heads: int, rank: int, ranks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's heads of both projections."""
    for name, count in (("heads", heads), ("kv_heads", kv_heads)):
        if count % ranks:
            raise ValueError(f"{name} = {count}, ranks = {ranks}: heads cannot be shared equally")
    head_dim = output.shape[1] // heads
    kinds = qkv.chunk(3)
    own_qkv = torch.cat([kind.chunk(ranks)[rank] for kind in kinds])
    return own_qkv, output.chunk(ranks, dim=1)[rank].clone()
