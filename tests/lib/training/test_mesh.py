"""Meshes and placements: where ranks stand, and which collective moves a tensor from one layout to another."""

from itertools import permutations, product

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.cluster import Cluster, RankFailed, run_on_processes
from threeloops.training.mesh import Mesh, Partial, Replicate, Shard, redistribute

RANKS = 4
SHAPE = (8, 4, 12)
PLACEMENTS = (Shard(0), Shard(2), Shard(-1), Replicate(), Partial())
CHANGES = list(permutations(PLACEMENTS, 2))


@given(st.dictionaries(st.sampled_from(["pp", "dp", "cp", "ep", "tp"]), st.integers(1, 4), max_size=4))
def test_coordinates_and_ranks_are_two_names_of_one_place(axes):
    mesh = Mesh(**axes)
    places = [mesh.coordinates(rank) for rank in range(mesh.size)]
    assert [tuple(place.values()) for place in places] == list(product(*map(range, axes.values())))
    assert [mesh.rank(**place) for place in places] == list(range(mesh.size))


@given(
    st.dictionaries(st.sampled_from(["pp", "dp", "cp", "ep", "tp"]), st.integers(1, 4), min_size=1, max_size=4),
    st.data(),
)
def test_a_group_has_the_ranks_that_differ_in_its_axes_alone(axes, data):
    mesh = Mesh(**axes)
    chosen = data.draw(st.sets(st.sampled_from(list(axes))))
    groups = mesh.groups(*chosen)
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
    for group in groups:
        assert list(group) == sorted(group)
        others = {tuple(v for k, v in mesh.coordinates(rank).items() if k not in chosen) for rank in group}
        assert len(others) == 1
    assert groups == sorted(groups)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: Mesh(dp=2, tp=0), "tp = 0: expected a length of 1 or more"),
        (lambda: Mesh(dp=2).coordinates(2), "rank = 2: Mesh(dp=2) has ranks 0 to 1"),
        (lambda: Mesh(dp=2).rank(dp=2), "dp = 2: Mesh(dp=2) has places 0 to 1 there"),
        (lambda: Mesh(dp=2, tp=3).groups("pp"), "there is no axis 'pp': Mesh(dp=2, tp=3) has dp, tp"),
    ],
)
def test_what_is_no_place_is_named(act, message):
    with pytest.raises(ValueError) as raised:
        act()
    assert str(raised.value) == message


def part(whole, placement, rank):
    """Rank's part of a tensor, after the definition of each placement."""
    if isinstance(placement, Replicate):
        return whole
    if isinstance(placement, Partial):  # any terms with this sum will do
        terms = torch.arange(1.0, RANKS, dtype=whole.dtype)
        return whole * terms[rank] if rank < RANKS - 1 else whole * (1 - terms.sum())
    length = whole.shape[placement.dim] // RANKS
    return whole.narrow(placement.dim, rank * length, length)


def changes():
    whole = torch.arange(8 * 4 * 12, dtype=torch.float64).view(SHAPE) - 100
    found = {}
    for before, after in CHANGES:
        local = part(whole, before, dist.get_rank())
        kept = local.clone()
        found[before, after] = redistribute(local, before, after)
        assert torch.equal(local, kept), "the input must stay as it is"
    return found


@pytest.fixture(scope="module")
def changed():
    return Cluster(RANKS).run(changes).results


@pytest.mark.parametrize(("before", "after"), CHANGES, ids=str)
def test_each_change_of_placement_keeps_the_tensor(changed, before, after):
    whole = torch.arange(8 * 4 * 12, dtype=torch.float64).view(SHAPE) - 100
    found = [result[before, after] for result in changed]
    if isinstance(after, Partial):
        assert torch.equal(sum(found), whole)
    else:
        for rank, local in enumerate(found):
            assert torch.equal(local, part(whole, after, rank))


def test_the_same_changes_run_on_gloo_which_is_stricter_about_shapes():
    def program():
        whole = torch.arange(8 * 4 * 12.0).view(SHAPE)
        found = {}
        for before, after in CHANGES:
            local = whole if isinstance(before, Replicate | Partial) else whole.chunk(2, before.dim)[dist.get_rank()]
            found[before, after] = redistribute(local, before, after)
        return found

    whole = torch.arange(8 * 4 * 12.0).view(SHAPE)
    results = run_on_processes("gloo", 2, program, seconds=60)
    for before, after in CHANGES:
        found = [result[before, after] for result in results]
        expected = 2 * whole if isinstance(before, Partial) else whole  # two terms, each of them the whole
        for rank, local in enumerate(found):
            if isinstance(after, Partial):
                assert torch.equal(sum(found), expected)
            else:
                assert torch.equal(
                    local, expected if isinstance(after, Replicate) else expected.chunk(2, after.dim)[rank]
                )


@pytest.mark.parametrize(
    ("before", "after", "sent"),
    [  # in units of the whole tensor's bytes, for 4 ranks
        (Partial(), Replicate(), 6 / 4),
        (Partial(), Shard(1), 3 / 4),
        (Shard(1), Replicate(), 3 / 4),
        (Shard(0), Shard(2), 3 / 16),
        (Replicate(), Shard(0), 0),
        (Replicate(), Partial(), 0),
        (Shard(0), Partial(), 0),
    ],
    ids=str,
)
def test_each_change_costs_what_the_table_says(before, after, sent):
    def program():
        redistribute(part(torch.ones(SHAPE), before, dist.get_rank()), before, after)

    run = Cluster(RANKS).run(program)
    assert [sum(row) for row in run.bytes] == [sent * 8 * 4 * 12 * 4] * RANKS


def test_what_cannot_be_cut_into_equal_parts_is_named():
    def program():
        redistribute(torch.ones(4, 6), Replicate(), Shard(1))

    with pytest.raises(RankFailed, match=r"dimension 1 of shape \(4, 6\) cannot be cut into 4 equal parts"):
        Cluster(RANKS).run(program)


def test_groups_of_a_program_are_those_of_its_mesh():
    def program():
        groups = Mesh(dp=2, tp=3).connect()
        found = {}
        for axis, group in groups.items():
            total = torch.tensor([1 << dist.get_rank()])
            dist.all_reduce(total, group=group)
            found[axis] = total.item()
        return found

    results = Cluster(6).run(program).results
    for axis in ("dp", "tp"):
        for group in Mesh(dp=2, tp=3).groups(axis):
            assert {results[rank][axis] for rank in group} == {sum(1 << rank for rank in group)}


def test_a_mesh_of_another_size_is_refused():
    with pytest.raises(RankFailed, match=r"Mesh\(dp=2, tp=2\) has 4 ranks, and the program runs on 3"):
        Cluster(3).run(lambda: Mesh(dp=2, tp=2).connect())
