# expect: a salt may hold any text
# fails: keys
# caught: hidden
def find_prefix(prompt: Prompt, cache: dict, block_size: int) -> tuple[list, list[int]]:
    """A key for each full block, and the cached blocks from the beginning."""
    keys = [
        "-".join([prompt.salt, *map(str, prompt.tokens[:end])])
        for end in range(block_size, len(prompt.tokens) + 1, block_size)
    ]
    blocks = []
    for key in keys[: (len(prompt.tokens) - 1) // block_size]:
        if key not in cache:
            break
        blocks.append(cache[key])
    return keys, blocks
