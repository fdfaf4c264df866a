"""CRC32C (Castagnoli): the checksum of TFRecord files, iSCSI and most storage systems.

A CRC is the remainder of a polynomial division over GF(2). Bits are reflected: bit 0 of a byte comes first, so the
polynomial 0x1EDC6F41 is written 0x82F63B78. Source: RFC 3720, section 12.1 and appendix B.4; masking: TensorFlow,
`core/lib/hash/crc32c.h`.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["crc32c", "masked"]

_POLYNOMIAL = 0x82F63B78
_ALL_ONES = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8
_BITS = np.arange(32, dtype=np.uint32)
_LONG = 4096
_MOST_LANES = 1 << 15  # shorter data are not worth cutting; more lanes do not fit the cache


def _make_table(bits: int) -> NDArray[np.uint32]:
    remainders: NDArray = np.arange(1 << bits, dtype=np.uint32)
    for _ in range(bits):
        remainders = (remainders >> 1) ^ (remainders & 1) * np.uint32(_POLYNOMIAL)
    return remainders


_TABLE, _TABLE_OF_PAIRS = _make_table(8).tolist(), _make_table(16)
"""The remainder of each byte, and of each two bytes."""


def crc32c(data: bytes | bytearray | memoryview | NDArray, before: int = 0) -> int:
    """Return the CRC32C of `data`. For data that come in pieces, `before` is the CRC32C of the bytes in front of it.

    NumPy processes long data as equal lanes, side by side, with one table look-up per lane for each two bytes. Lanes
    are then joined in pairs: appending n bytes multiplies the remainder of the bytes before them by x^(8n).
    """
    view = memoryview(data)  # type: ignore[arg-type]
    octets = np.frombuffer(view.cast("B"), np.uint8) if view.nbytes else np.empty(0, np.uint8)
    state = before ^ _ALL_ONES
    if len(octets) >= _LONG:
        lanes = min(1 << (len(octets) // 64).bit_length() - 1, _MOST_LANES)
        words = len(octets) // (2 * lanes)
        head = octets[: 2 * words * lanes].view("<u2").reshape(lanes, words)
        state = _multiply(_appending_zeros(2 * words * lanes), state) ^ _in_lanes(head)
        octets = octets[2 * words * lanes :]
    for octet in octets.tolist():
        state = _TABLE[(state ^ octet) & 0xFF] ^ (state >> 8)
    return state ^ _ALL_ONES


def _in_lanes(lanes: NDArray[np.uint16]) -> int:
    """The state after all words of `lanes`, row after row, from zero; shape (a power of two, words per lane)."""
    states = np.zeros(len(lanes), np.uint32)
    for column in np.ascontiguousarray(lanes.T):
        states = _TABLE_OF_PAIRS.take((states ^ column) & 0xFFFF) ^ (states >> 16)
    lane_bytes = 2 * lanes.shape[1]
    while len(states) > 1:
        images = np.array(_appending_zeros(lane_bytes), np.uint32)
        moved = np.bitwise_xor.reduce((states[0::2, None] >> _BITS & 1) * images, axis=1)
        states = moved ^ states[1::2]
        lane_bytes = 2 * lane_bytes
    return int(states[0])


@lru_cache(256)
def _appending_zeros(count: int) -> tuple[int, ...]:
    """How `count` zero bytes change a state, which is a linear map: the image of each of its 32 bits."""
    power = tuple(_TABLE[bit & 0xFF] ^ (bit >> 8) for bit in (1 << k for k in range(32)))
    result = tuple(1 << k for k in range(32))
    while count:
        if count & 1:
            result = tuple(_multiply(power, bit) for bit in result)
        power = tuple(_multiply(power, bit) for bit in power)
        count = count >> 1
    return result


def _multiply(images: tuple[int, ...], state: int) -> int:
    product = 0
    for image in images:
        if state & 1:
            product ^= image
        state >>= 1
    return product


def masked(crc: int) -> int:
    """A CRC as it is stored beside its data: rotated and shifted, because a CRC of data that hold a CRC is weak."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _ALL_ONES
