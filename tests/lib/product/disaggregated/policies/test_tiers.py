"""Blocks in tiers: by hand, against an oracle of one list, and the policies on traces where they must differ."""

from itertools import accumulate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.product.disaggregated import Tier, TieredCache, by_reuse_and_cost, first_in, lru

HBM, HOST, DISK = Tier("HBM", 3), Tier("host", 4, 0.5, 20.0), Tier("disk", 5, 2.0, 10.0)


def keys(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


def contents(cache: TieredCache) -> list[str]:
    return ["".join(sorted(key.decode() for key in tier)) for tier in cache.contents().values()]


def test_a_block_moves_down_when_others_come_and_up_when_it_is_used():
    cache = TieredCache([HBM, HOST], block_bytes=10)
    cache.use(keys("abc"))
    assert contents(cache) == ["abc", ""]
    cache.use(keys("de"))
    assert contents(cache) == ["ade", "bc"], "the beginning of a prompt stays longest"
    assert cache.use(keys("abc")).found == (1, 2)
    assert contents(cache) == ["abc", "de"]
    assert (cache.hits, cache.misses, cache.lost, cache.hit_rate) == ([1, 2], 5, 0, 3 / 8)


def test_what_the_last_tier_has_no_room_for_is_lost():
    cache = TieredCache([Tier("one", 1), Tier("two", 2)], block_bytes=10)
    for letter in "abcd":
        cache.use(keys(letter))
    assert contents(cache) == ["d", "bc"] and cache.lost == 1
    assert cache.find(keys("a")).missing == 1


def test_a_prompt_is_found_up_to_its_first_missing_block():
    cache = TieredCache([HBM, HOST, DISK], block_bytes=10)
    cache.use(keys("abc"))
    hits = cache.find(keys("abxc"))
    assert (hits.found, hits.missing, hits.blocks) == ((2, 0, 0), 2, 2)
    assert cache.find(keys("xabc")).blocks == 0
    assert cache.hits == [0, 0, 0], "to look changes nothing"


def test_blocks_of_a_tier_load_together_and_the_first_tier_takes_no_time():
    cache = TieredCache([HBM, HOST, DISK], block_bytes=10)
    cache.use(keys("abcdefgh"))
    assert contents(cache) == ["abc", "defg", "h"]
    hits = cache.find(keys("abcdefgh"))
    assert hits.found == (3, 4, 1) and hits.seconds == 0.5 + 40 / 20 + 2.0 + 10 / 10
    assert cache.find(keys("abc")).seconds == 0


prompts = st.lists(st.integers(0, 30), min_size=1, max_size=9)


@given(requests=st.lists(prompts, max_size=40), rooms=st.lists(st.integers(1, 7), min_size=1, max_size=3))
def test_lru_in_tiers_is_one_list_that_is_cut(requests, rooms):
    """Whatever is used goes to the front, and the tiers are the first blocks of the list, the next ones, and so on."""
    cache = TieredCache([Tier(str(number), room) for number, room in enumerate(rooms)], block_bytes=10)
    edges = [0, *accumulate(rooms)]
    recent: list[bytes] = []
    for request in requests:
        asked = [b"%d" % token for token in dict.fromkeys(request)]
        found = [0] * len(rooms)
        for key in asked:
            if key not in recent:
                break
            found[next(n for n in range(len(rooms)) if recent.index(key) < edges[n + 1])] += 1
        assert cache.use(asked).found == tuple(found)
        recent = (asked + [key for key in recent if key not in asked])[: edges[-1]]
        tiers = [set(recent[low:high]) for low, high in zip(edges, edges[1:], strict=False)]
        assert list(cache.contents().values()) == tiers


@given(
    requests=st.lists(prompts, max_size=60), rooms=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    eviction=st.sampled_from([lru, first_in, by_reuse_and_cost, lambda use, floor: -use.place]),
)  # fmt: skip
def test_no_block_is_in_two_tiers_and_no_tier_overflows(requests, rooms, eviction):
    cache = TieredCache([Tier(str(number), room) for number, room in enumerate(rooms)], 10, eviction)
    asked = new = 0
    for request in requests:
        unique = [b"%d" % token for token in dict.fromkeys(request)]
        before = set().union(*cache.contents().values())
        new += len(set(unique) - before)
        cache.use(unique, [1.0 + place for place in range(len(unique))])
        asked += len(unique)
        tiers = list(cache.contents().values())
        assert all(len(tier) <= room for tier, room in zip(tiers, rooms, strict=True))
        assert len(set().union(*tiers)) == sum(map(len, tiers)) == new - cache.lost
        assert sum(cache.hits) + cache.misses == asked


def test_a_scan_pushes_out_what_lru_keeps_and_reuse_does_not():
    """Two popular prompts come between many that are asked for once."""
    random = Random(1)
    requests = []
    for number in range(300):
        requests += [random.choice(["AB", "CD"])] if number % 3 == 0 else []
        requests += [f"{number}-{place}" for place in range(2)]
    rates = {}
    for policy in (lru, first_in, by_reuse_and_cost):
        cache = TieredCache([Tier("HBM", 4), Tier("host", 3, 1.0, 10.0)], 10, policy)
        for request in requests:
            cache.use(keys(request) if request.isalpha() else [request.encode()], 1.0)
        rates[policy] = cache.hit_rate
    assert rates[by_reuse_and_cost] > 1.2 * rates[lru] and rates[by_reuse_and_cost] > 1.2 * rates[first_in]


def test_a_block_that_takes_long_to_compute_stays_longer():
    for policy, stays in ((lru, "bc"), (by_reuse_and_cost, "ac")):
        cache = TieredCache([Tier("HBM", 2)], 10, policy)
        cache.use(keys("a"), 5.0)
        cache.use(keys("b"), 1.0)
        cache.use(keys("c"), 2.0)
        assert contents(cache) == [stays]


def test_what_was_popular_once_leaves_in_the_end():
    cache = TieredCache([Tier("HBM", 2)], 10, by_reuse_and_cost)
    for _ in range(10):
        cache.use(keys("a"), 1.0)
    uses = 0
    while b"a" in cache.contents()["HBM"]:
        cache.use([b"%d" % uses], 1.0)
        uses += 1
        assert uses < 30
    assert uses >= 10, "it has been used ten times as often"


def test_a_block_that_comes_back_is_new():
    seen = []

    def watch(use, floor):
        seen.append((use.key.decode(), use.place, use.uses, use.first, use.last))
        return use.last

    cache = TieredCache([Tier("HBM", 2)], 10, watch)
    cache.use(keys("ab"))
    cache.use(keys("a"))
    cache.use(keys("c"))
    cache.use(keys("b"))
    assert seen == [("b", 1, 1, 1, 1), ("a", 0, 1, 2, 2), ("a", 0, 2, 2, 3), ("c", 0, 1, 4, 4), ("b", 0, 1, 5, 5)]


def test_a_long_run_takes_no_more_memory_than_its_blocks():
    cache = TieredCache([Tier("HBM", 5)], 10)
    for _ in range(2000):
        cache.use(keys("abc"))
    assert len(cache._shelves[0]._heap) <= 2 * 3 + 65


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tier("HBM", 0), "blocks = 0"),
        (lambda: Tier("HBM", 1, -1.0), "tier 'HBM': latency = -1.0"),
        (lambda: Tier("HBM", 1, 0.0, 0.0), "bandwidth = 0.0"),
        (lambda: TieredCache([], 10), "expected at least one"),
        (lambda: TieredCache([HBM, Tier("HBM", 2)], 10), "no name twice"),
        (lambda: TieredCache([HBM], 0), "block_bytes = 0"),
    ],
)
def test_what_makes_no_sense_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
