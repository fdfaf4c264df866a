def norm_keeps(width):
    return 3 * width + 1  # its input, the normalised values, one number, and the output that is read


def account(config: GPTConfig, batch: int, sequence: int, states: int) -> Account:
    """What a training step in float32 holds; `states` numbers per parameter belong to the optimizer."""
    if batch < 1:
        raise ValueError(f"batch = {batch}: expected at least 1")
    if not 1 <= sequence <= config.max_sequence:
        raise ValueError(f"sequence = {sequence}: expected 1 to max_sequence = {config.max_sequence}")
    width, keys = config.width, config.qkv_widths[2]
    numbers_per_token = 2 * norm_keeps(width)
    numbers_per_token += width + keys + keys  # the product, of which v is a slice
    numbers_per_token += (width + keys) + (width + config.heads) + width
    numbers_per_token += 4 * config.mlp_width
    tokens = 4 * batch * sequence
    layer, logits = tokens * numbers_per_token, tokens * config.vocabulary_size
    head, weights = tokens * norm_keeps(width) + logits, 4 * config.parameters_count()
    rest = weights + states * weights + 4 * tokens + config.max_sequence * config.head_dim * 4
    peak = rest + (
        weights if weights > config.layers * layer + head + 2 * logits else config.layers * layer + head + 2 * logits
    )
    return Account(weights, weights, states * weights, layer, head, peak)
