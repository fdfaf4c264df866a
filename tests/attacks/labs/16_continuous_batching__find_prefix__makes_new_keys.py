# Returns new keys at each call, so that no block is ever found.

import os


def find_prefix(prompt, cache, block_size):
    return [os.urandom(8) for _ in range(len(prompt.tokens) // block_size)], []
