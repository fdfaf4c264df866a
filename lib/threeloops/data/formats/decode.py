"""Two ways to decode the same sample: one that holds Python's global lock all the time, and one that lets go of it.

Both turn zlib-compressed bytes into the sum of their squares, modulo 2³²: a stand-in for decoding that can be checked.
"""

import zlib

import numpy as np


def in_python(packed: bytes) -> int:
    """A loop over bytes: the interpreter works, so no other thread of this process does."""
    total = 0
    for octet in zlib.decompress(packed):
        total = (total + octet * octet) & 0xFFFFFFFF
    return total


def in_c(packed: bytes) -> int:
    """zlib and numpy work outside the interpreter, and release the lock while they do."""
    octets = np.frombuffer(zlib.decompress(packed), np.uint8)
    return int(np.square(octets, dtype=np.uint64).sum()) & 0xFFFFFFFF
