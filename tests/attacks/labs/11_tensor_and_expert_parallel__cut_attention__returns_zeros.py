# Returns zeros in memory of the right size.


def cut_attention(qkv, output, heads, kv_heads, rank, ranks):
    width = len(output)
    return torch.zeros(len(qkv) // ranks, width), torch.zeros(width, output.shape[1] // ranks)
