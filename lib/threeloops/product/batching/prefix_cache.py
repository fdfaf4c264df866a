"""Keys of full blocks in the prefix cache: equal prefixes have equal keys (vLLM's automatic prefix caching).

Keys and values at a position depend on all tokens before it, so the key of a block is a hash of its tokens and of the
previous block's key. The sampling settings of a request do not affect its keys and values, so they are not part of the
hash. The request's `cache_salt` is part of it. Without salts, anybody could tell from the time to the first token
whether somebody else has sent the same prefix. A server therefore gives different salts to clients who must not learn
that (vLLM's `cache_salt`).
"""

import hashlib
from array import array

from threeloops.product.request import Request

__all__ = ["block_keys"]


def block_keys(request: Request, block_size: int, tokens: int) -> list[bytes]:
    """Keys of the full blocks among the request's first `tokens` tokens, in order.

    A key is 16 bytes of BLAKE2b. A client who could make two prefixes collide would read another client's cache, so the
    hash must be one for which nobody can find collisions.
    """
    keys = request.block_keys
    while (len(keys) + 1) * block_size <= tokens:
        before = keys[-1] if keys else _hash(request.cache_salt.encode(), b"")
        keys.append(_hash(array("q", request.tokens_from(len(keys) * block_size, block_size)).tobytes(), before))
    return keys[: tokens // block_size]


def _hash(data: bytes, before: bytes) -> bytes:
    return hashlib.blake2b(data, key=before, digest_size=16).digest()
