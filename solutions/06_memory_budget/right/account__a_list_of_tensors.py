def account(config: GPTConfig, batch: int, sequence: int, states: int) -> Account:
    """What a training step in float32 holds; `states` numbers per parameter belong to the optimizer."""
    if batch < 1:
        raise ValueError(f"batch = {batch}: expected at least 1")
    if not 1 <= sequence <= config.max_sequence:
        raise ValueError(f"sequence = {sequence}: expected 1 to max_sequence = {config.max_sequence}")
    t, w, m, v = batch * sequence, config.width, config.mlp_width, config.vocabulary_size
    q, k, _ = config.qkv_widths
    attention_half = [w, w, 1, w, q + 2 * k, q, k, q, config.heads, w]
    mlp_half = [w, w, 1, w, m, m, m, m]
    layer = 4 * t * sum(attention_half + mlp_half)
    head = 4 * t * sum([w, w, 1, w, v])
    weights = 4 * config.parameters_count()
    fixed = weights + states * weights + 2 * 8 * t + 4 * config.max_sequence * config.head_dim
    at_loss = fixed + config.layers * layer + head + 2 * 4 * t * v
    at_update = fixed + weights
    return Account(weights, weights, states * weights, layer, head, max(at_loss, at_update))
