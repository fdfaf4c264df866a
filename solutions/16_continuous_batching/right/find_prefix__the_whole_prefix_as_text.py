def find_prefix(prompt: Prompt, cache: dict, block_size: int) -> tuple[list, list[int]]:
    """A key for each full block, and the cached blocks from the beginning."""
    keys = [
        repr((prompt.salt, tuple(prompt.tokens[: (place + 1) * block_size])))
        for place in range(len(prompt.tokens) // block_size)
    ]
    blocks = []
    while len(blocks) < len(keys) and keys[len(blocks)] in cache:
        if (len(blocks) + 1) * block_size >= len(prompt.tokens):
            break
        blocks.append(cache[keys[len(blocks)]])
    return keys, blocks
