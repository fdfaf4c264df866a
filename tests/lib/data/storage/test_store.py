"""Every store answers alike: the same bytes, the same error for what it does not hold."""

import pytest
from threeloops.data.storage.cache import CachedStore
from threeloops.data.storage.slow_store import SharedLink, SlowStore
from threeloops.data.storage.store import MemoryStore
from threeloops.simulation.clock import VirtualClock

OBJECTS = {"f": b"0123456789", "train/a.jpg": b"abc", "empty": b""}


@pytest.fixture(params=["memory", "cached", "cached before", "slow"])
def store(request, tmp_path):
    if request.param == "memory":
        return MemoryStore(OBJECTS)
    if request.param == "slow":
        return SlowStore(MemoryStore(OBJECTS), SharedLink(0.0, 1e9), clock=VirtualClock())
    cached = CachedStore(MemoryStore(OBJECTS), tmp_path, 1000)
    for key in OBJECTS if request.param == "cached before" else ():
        cached.get(key)
    return cached


@pytest.mark.parametrize("key", OBJECTS)
def test_an_object_is_all_of_its_bytes(store, key):
    assert store.get(key) == OBJECTS[key]


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
