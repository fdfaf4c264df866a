"""Two decoders of the same sample: one holds Python's global lock, the other releases it.

Both turn zlib-compressed bytes into the sum of their squares modulo 2³²: a stand-in for decoding that can be checked.
"""

import zlib

import numpy as np

__all__ = ["in_c", "in_python"]


def in_python(packed: bytes) -> int:
    """A loop in the interpreter, during which no other thread of this process runs Python."""
    total = 0
    for octet in zlib.decompress(packed):
        total = (total + octet * octet) & 0xFFFFFFFF
    return total


def in_c(packed: bytes) -> int:
    """zlib and NumPy release the lock while they work."""
    octets = np.frombuffer(zlib.decompress(packed), np.uint8)
    return int(np.square(octets, dtype=np.uint64).sum()) & 0xFFFFFFFF
