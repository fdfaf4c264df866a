def account(config: GPTConfig, batch: int, sequence: int, states: int) -> Account:
    """What a training step in float32 holds; `states` numbers per parameter belong to the optimizer."""
    if batch < 1:
        raise ValueError(f"batch = {batch}: expected at least 1")
    if not 1 <= sequence <= config.max_sequence:
        raise ValueError(f"sequence = {sequence}: expected 1 to max_sequence = {config.max_sequence}")
    per_token = np.array([10 * config.width, 3 * config.qkv_widths[1], config.heads + 2, 4 * config.mlp_width]).sum()
    tokens = batch * sequence
    layer = int(4 * tokens * per_token)
    logits = 4 * tokens * config.vocabulary_size
    head = 4 * tokens * (3 * config.width + 1) + logits
    size = 4 * config.parameters_count()
    moments = [config.layers * layer + head + 2 * logits, size]
    peak = size * (1 + states) + 16 * tokens + 4 * config.max_sequence * config.head_dim + max(moments)
    return Account(gradients=size, parameters=size, states=size * states, layer=layer, head=head, peak=peak)
