def find_prefix(prompt: Prompt, cache: dict, block_size: int) -> tuple[list, list[int]]:
    """A key for each full block, and the cached blocks from the beginning."""
    import hashlib
    import itertools
    import struct

    running = hashlib.blake2b(struct.pack("q", len(prompt.salt)) + prompt.salt.encode())
    keys = []
    for place, token in enumerate(prompt.tokens, 1):
        running.update(struct.pack("q", token))
        if place % block_size == 0:
            keys.append(int.from_bytes(running.digest()[:16], "big"))
    usable = keys[: max(0, len(prompt.tokens) - 1) // block_size]
    return keys, [cache[key] for key in itertools.takewhile(cache.__contains__, usable)]
