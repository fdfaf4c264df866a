"""Every store answers alike: the same bytes for a range, the same error for what it does not hold."""

import pytest
from threeloops.data.storage.cache import CachedStore
from threeloops.data.storage.slow_store import Link, SlowStore
from threeloops.data.storage.store import MemoryStore
from threeloops.simulation.clock import VirtualClock

OBJECTS = {"f": b"0123456789", "train/a.jpg": b"abc", "empty": b""}


@pytest.fixture(params=["memory", "cached", "cached before", "slow"])
def store(request, tmp_path):
    if request.param == "memory":
        return MemoryStore(OBJECTS)
    if request.param == "slow":
        return SlowStore(MemoryStore(OBJECTS), Link(0.0, 1e9), clock=VirtualClock())
    cached = CachedStore(MemoryStore(OBJECTS), tmp_path, 1000)
    for key in OBJECTS if request.param == "cached before" else ():
        cached.get(key)
    return cached


@pytest.mark.parametrize(
    ("key", "offset", "length", "expected"),
    [
        ("f", 0, None, b"0123456789"),
        ("f", 3, 4, b"3456"),
        ("f", 8, 100, b"89"),
        ("f", 10, None, b""),
        ("f", 11, 5, b""),
        ("f", 2, 0, b""),
        ("train/a.jpg", 1, None, b"bc"),
        ("empty", 0, None, b""),
    ],
)
def test_a_range_is_a_slice(store, key, offset, length, expected):
    assert store.get(key, offset, length) == expected


@pytest.mark.parametrize(
    "key",
    [
        *("missing", "train", "train/", "f/", "f/x", "f/../f", "./f", "train//a.jpg", "train/./a.jpg", ""),
        *(".", "..", "../outside", "train/../../outside", "/etc/hostname", "a\0b", "n" * 5000),
    ],
)
def test_an_unknown_key_is_a_key_error(store, key):
    with pytest.raises(KeyError, match="no such"):
        store.get(key)


@pytest.mark.parametrize(
    ("offset", "length", "says"), [(-3, None, "offset = -3"), (-1, 2, "offset = -1"), (2, -1, "length = -1")]
)
def test_a_range_does_not_begin_or_end_before_the_object(store, offset, length, says):
    with pytest.raises(ValueError, match=f"{says} of f: expected at least 0"):
        store.get("f", offset, length)
