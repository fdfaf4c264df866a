def find_prefix(prompt: Prompt, cache: dict, block_size: int) -> tuple[list, list[int]]:
    """A key for each full block, and the cached blocks from the beginning."""
    keys = []
    for end in range(block_size, len(prompt.tokens) + 1, block_size):
        keys.append((prompt.salt, prompt.tokens[:end]))
    blocks, most = [], (len(prompt.tokens) - 1) // block_size
    while len(blocks) < most and keys[len(blocks)] in cache:
        blocks.append(cache.pop(keys[len(blocks)]))
    return keys, blocks
