"""Routers: who gets a request, as a function of what is outstanding."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.product.fleet import Load, least_outstanding, prefix_aware, prefix_key, round_robin, two_choices

ROUTERS = (round_robin, least_outstanding, two_choices, prefix_aware())


def loads(*outstanding: int) -> list[Load]:
    return [Load(f"replica-{place}", count) for place, count in enumerate(outstanding)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(0, 10**6), st.binary(max_size=8))
def test_a_router_names_a_place_and_the_same_one_every_time(outstanding, turn, key):
    for route in ROUTERS:
        place = route(loads(*outstanding), turn, key)
        assert 0 <= place < len(outstanding)
        assert place == route(loads(*outstanding), turn, key)


@pytest.mark.parametrize("route", ROUTERS)
def test_without_a_replica_there_is_an_error_that_says_what_to_do(route):
    with pytest.raises(ValueError, match="hold it until one is ready, or answer 503"):
        route([], 0, b"")


def test_round_robin_goes_around():
    assert [round_robin(loads(9, 0, 0), turn, b"") for turn in range(5)] == [0, 1, 2, 0, 1]


def test_the_least_loaded_is_taken_and_ties_go_around():
    assert {least_outstanding(loads(3, 1, 2), turn, b"") for turn in range(9)} == {1}
    assert Counter(least_outstanding(loads(0, 0, 0, 0), turn, b"") for turn in range(40)) == dict.fromkeys(range(4), 10)
    assert {least_outstanding(loads(1, 0, 1, 0), turn, b"") for turn in range(9)} == {1, 3}


def test_two_choices_compare_every_pair_about_as_often_and_never_take_the_most_loaded():
    chosen = Counter(two_choices(loads(0, 1, 2, 3), turn, b"") for turn in range(6000))
    assert 3 not in chosen
    assert [round(chosen[place] / 1000) for place in range(3)] == [3, 2, 1], "3, 2 and 1 of the 6 pairs"


@given(st.integers(2, 8), st.integers(1, 300))
def test_two_choices_keep_the_load_close_where_random_ones_would_not(replicas, requests):
    counts = [0] * replicas
    for turn in range(requests):
        counts[two_choices(loads(*counts), turn, b"")] += 1
    assert max(counts) - requests / replicas <= 4


def test_equal_prefixes_go_to_the_same_replica_and_all_replicas_get_some():
    route, idle = prefix_aware(), loads(0, 0, 0, 0)
    keys = [prefix_key([number] * 64) for number in range(400)]
    places = {key: {route(idle, turn, key) for turn in range(3)} for key in keys}
    assert all(len(found) == 1 for found in places.values())
    counts = Counter(place for found in places.values() for place in found)
    assert all(60 <= counts[place] <= 140 for place in range(4))


def test_one_replica_less_moves_only_its_own_keys():
    route, four = prefix_aware(), loads(0, 0, 0, 0)
    for number in range(200):
        key = prefix_key([number] * 64)
        before = four[route(four, 0, key)]
        without = [load for load in four if load.replica != "replica-2"]
        if before.replica != "replica-2":
            assert without[route(without, 0, key)] == before


@given(st.integers(1, 6), st.lists(st.integers(0, 3), min_size=1, max_size=120), st.sampled_from([1.0, 1.25, 2.0]))
def test_no_replica_is_loaded_above_the_bound_however_few_the_prefixes(replicas, prefixes, imbalance):
    route, counts = prefix_aware(imbalance), [0] * replicas
    for turn, prefix in enumerate(prefixes):
        counts[route(loads(*counts), turn, prefix_key([prefix] * 64))] += 1
        assert max(counts) <= imbalance * sum(counts) / replicas + 1


@pytest.mark.parametrize("imbalance", [0.9, -1, float("nan")])
def test_a_bound_below_the_mean_is_refused(imbalance):
    with pytest.raises(ValueError, match="imbalance = .* at least 1"):
        prefix_aware(imbalance)


def test_a_key_is_of_the_first_blocks():
    prompt = list(range(200))
    assert prefix_key(prompt) == prefix_key([*prompt[:64], *[7] * 90])
    assert prefix_key(prompt) != prefix_key([1, *prompt[1:]])
    assert prefix_key(prompt[:40]) == prefix_key([*prompt[:32], 0, 0]), "its two full blocks"
    assert prefix_key([1, 2]) != prefix_key([1, 3]) and prefix_key([]) == prefix_key([])
