# expect: the tokens are not a text
# fails: keys
def find_prefix(prompt: Prompt, cache: dict, block_size: int) -> tuple[list, list[int]]:
    """A key for each full block, and the cached blocks from the beginning."""
    import hashlib

    key, keys = hashlib.sha256(prompt.salt.encode()).digest(), []
    for end in range(block_size, len(prompt.tokens) + 1, block_size):
        key = hashlib.sha256(key + "".join(map(str, prompt.tokens[end - block_size : end])).encode()).digest()
        keys.append(key)
    blocks = []
    for key in keys[: (len(prompt.tokens) - 1) // block_size]:
        if key not in cache:
            break
        blocks.append(cache[key])
    return keys, blocks
