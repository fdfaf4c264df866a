def elements(*shape):
    return math.prod(shape)


def attention_work(batch, heads, kv_heads, queries, keys, head_dim, bytes_per_element):
    for name, value in list(locals().items()):
        if not value > 0:
            raise ValueError(f"{name} = {value}")
    if heads % kv_heads != 0:
        raise ValueError(f"{heads} heads are no multiple of kv_heads, {kv_heads}")
    q = elements(batch, heads, queries, head_dim)
    k = elements(batch, kv_heads, keys, head_dim)
    s = elements(batch, heads, queries, keys)
    kernels = [(q + k + s, s * (2 * head_dim + 1)), (s + s, 5 * s), (s + k + q, 2 * s * head_dim)]
    return Work(sum(k[0] for k in kernels) * bytes_per_element, sum(k[1] for k in kernels))
