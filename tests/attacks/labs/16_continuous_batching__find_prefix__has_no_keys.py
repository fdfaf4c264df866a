# Returns no keys, so that no block can be expected.


def find_prefix(prompt, cache, block_size):
    return [], []
