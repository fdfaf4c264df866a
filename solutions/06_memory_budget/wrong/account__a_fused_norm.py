# expect: each norm lacks a tensor
# fails: kept
def account(config: GPTConfig, batch: int, sequence: int, states: int) -> Account:
    """What a training step in float32 holds; `states` numbers per parameter belong to the optimizer."""
    if batch < 1:
        raise ValueError(f"batch = {batch}: expected at least 1")
    if not 1 <= sequence <= config.max_sequence:
        raise ValueError(f"sequence = {sequence}: expected 1 to max_sequence = {config.max_sequence}")
    tokens, width, keys = batch * sequence, config.width, config.qkv_widths[1]
    stream = 2 * width  # the block's input, and what lies between its halves
    norms = 2 * (width + 1)  # normalised, and the output that the products behind it keep
    attention = (width + 2 * keys) + width + keys + width + config.heads + width  # qkv, q, k, output, sums, joined
    layer = 4 * tokens * (stream + norms + attention + 4 * config.mlp_width)
    logits = 4 * tokens * config.vocabulary_size
    head = 4 * tokens * (3 * width + 1) + logits
    parameters = 4 * config.parameters_count()
    always = parameters * (1 + states) + 16 * tokens + 4 * config.max_sequence * config.head_dim
    peak = always + max(config.layers * layer + head + 2 * logits, parameters)
    return Account(parameters, parameters, states * parameters, layer, head, peak)
