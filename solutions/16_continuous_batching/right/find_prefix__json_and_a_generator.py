def find_prefix(prompt: Prompt, cache: dict, block_size: int) -> tuple[list, list[int]]:
    """A key for each full block, and the cached blocks from the beginning."""
    import hashlib
    import json

    def chain():
        before = prompt.salt
        for first in range(0, len(prompt.tokens) - block_size + 1, block_size):
            text = json.dumps([before, *prompt.tokens[first : first + block_size]])
            before = hashlib.md5(text.encode()).hexdigest()
            yield before

    keys = tuple(chain())
    found = [cache.get(key) for key in keys] + [None]
    found = found[: found.index(None)]
    if len(found) * block_size == len(prompt.tokens):
        found.pop()
    return keys, found
