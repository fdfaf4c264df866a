"""Flat tensors, their chunks, and what is saved of them."""

from math import prod

import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.cluster import Cluster
from threeloops.training.sharded.flat import FlatGradient, FlatLayout, load_shards, shards_state
from torch import nn

SHAPES = st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=6)


def parameters_of(shapes):
    """Each element has a number of its own, from 1 on."""
    start, made = 1, {}
    for number, shape in enumerate(shapes):
        made[f"p{number}"] = torch.arange(start, start + prod(shape), dtype=torch.float64).view(shape)
        start += prod(shape)
    return made


@given(SHAPES, st.integers(1, 9))
def test_chunks_are_equal_and_cover_all_elements_in_reverse_order_of_registration_with_zeros_behind(shapes, ranks):
    parameters = parameters_of(shapes)
    layout = FlatLayout(parameters, ranks)
    flat = layout.flatten(parameters)
    expected = torch.cat([p.flatten() for p in reversed(list(parameters.values()))])
    assert layout.padded % ranks == 0 and 0 <= layout.padded - expected.numel() < ranks
    assert torch.equal(flat, nn.functional.pad(expected, (0, layout.padded - expected.numel())))
    chunks = [layout.chunk(flat, rank) for rank in range(ranks)]
    assert {chunk.numel() for chunk in chunks} == {layout.padded // ranks}
    assert torch.equal(torch.cat(chunks), flat)
    assert torch.equal(torch.cat([layout.shard(flat, rank) for rank in range(ranks)]), expected)


@given(SHAPES, st.integers(1, 4))
def test_views_have_the_shapes_of_the_parameters_and_share_their_memory(shapes, ranks):
    parameters = parameters_of(shapes)
    layout = FlatLayout(parameters, ranks)
    flat = layout.flatten(parameters)
    views = layout.views(flat)
    assert views.keys() == parameters.keys()
    for name, parameter in parameters.items():
        assert torch.equal(views[name], parameter)
    flat.zero_()
    assert all(not view.any() for view in views.values())


def one_rank():
    """The gradient of a group of one rank: what is collected, averaged and refused."""
    made = {"a": nn.Parameter(torch.zeros(2, 2)), "b": nn.Parameter(torch.zeros(1))}
    layout = FlatLayout(made, 1)
    shard = nn.Parameter(layout.flatten(made))
    said = {}

    def round_of(gradient):
        gradient.expect()
        for parameter, value in ((made["a"], 2.0), (made["b"], 3.0)):
            parameter.grad = torch.full_like(parameter, value)
        gradient.put("b")
        gradient.put("a")
        gradient.reduce()
        gradient.finish()
        return shard.grad.clone()

    freed = FlatGradient(made, layout, shard, None)
    said["first"], said["both"] = round_of(freed), round_of(freed)
    said["freed"] = made["a"].grad is None and made["b"].grad is None and not freed.collecting
    freed.clear()
    kept = FlatGradient(made, layout, shard, None, keep=True)
    said["kept"] = round_of(kept), made["a"].grad.clone()
    kept.expect()
    try:
        kept.put("a")
    except RuntimeError as error:
        said["again"] = str(error)
    said["fresh"] = round_of(kept)
    kept.clear()
    said["cleared"] = made["a"].grad is None and shard.grad is None and not kept.collecting
    try:
        kept.expect()
        made["b"].grad = torch.ones(1)
        kept.put("b")
        kept.put("b")
    except RuntimeError as error:
        said["twice"] = str(error)
    return said


def test_gradients_are_freed_and_add_up_or_are_kept_and_may_not_be_averaged_twice():
    (said,) = Cluster(1).run(one_rank).results
    assert said["first"].tolist() == [3, 2, 2, 2, 2] and said["both"].tolist() == [6, 4, 4, 4, 4] and said["freed"]
    assert said["kept"][0].tolist() == [3, 2, 2, 2, 2] and said["kept"][1].tolist() == [[2, 2], [2, 2]]
    assert "added to that of 'a', which is averaged already: call zero_grad() before" in said["again"]
    assert said["fresh"].tolist() == [3, 2, 2, 2, 2] and said["cleared"]
    assert "'b' got a second gradient in one backward" in said["twice"]


def saved_and_loaded():
    made = parameters_of([(3,), (2, 2)])
    layout, group, rank = FlatLayout(made, 2), None, dist.get_rank()
    shard = layout.shard(layout.flatten(made), rank).clone()
    state = shards_state([layout], [shard], group)
    shard.zero_()
    changed = state["shards"][0]["values"].any().item()
    load_shards(state, [layout], [shard], group)
    said = {}
    other = FlatLayout(parameters_of([(2, 2), (3,)]), 2)
    for name, wrong, layouts in (
        ("rank", state | {"rank": 1 - rank}, [layout]),
        ("ranks", state | {"ranks": 3}, [layout]),
        ("fewer", state | {"shards": []}, [layout]),
        ("other", state, [other]),
    ):
        into = torch.full_like(shard, -1.0)
        try:
            load_shards(wrong, layouts, [into], group)
        except ValueError as error:
            said[name] = str(error)
        assert into.eq(-1).all()
    return state, changed, shard, said


def test_shards_are_saved_as_copies_that_can_be_joined_and_loaded_where_they_came_from():
    results = Cluster(2).run(saved_and_loaded).results
    joined = torch.cat([state["shards"][0]["values"] for state, *_ in results])
    assert joined.tolist() == [4, 5, 6, 7, 1, 2, 3]
    assert results[0][0]["shards"][0]["parameters"] == {"p1": (2, 2), "p0": (3,)}
    for state, changed, shard, said in results:
        assert changed and torch.equal(shard, state["shards"][0]["values"])
        assert "the state has rank = " in said["rank"] and "ranks = 3, and this is ranks = 2" in said["ranks"]
        assert "the state has 0 shards: expected 1" in said["fewer"]
        assert "shard 0 of the state has {'p1': (2, 2), 'p0': (3,)}" in said["other"]
