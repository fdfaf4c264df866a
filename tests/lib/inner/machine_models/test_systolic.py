"""Systolic arrays: the product, the cycles and the wavefront."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner.machine_models.systolic import cycles, output_stationary, tile, weight_stationary

SIZES = st.integers(1, 9)
DATAFLOWS = ["output stationary", "weight stationary"]
SIMULATE = {"output stationary": output_stationary, "weight stationary": weight_stationary}


def operands(m, n, k, seed=0):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((m, k)), generator.standard_normal((k, n))


@pytest.mark.parametrize("dataflow", DATAFLOWS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 7, 3), (5, 1, 4), (3, 4, 1), (7, 5, 13), (16, 17, 15)])
def test_product_is_that_of_float64_numpy(dataflow, m, n, k):
    a, b = operands(m, n, k)
    np.testing.assert_allclose(SIMULATE[dataflow](a, b).product, a @ b, rtol=1e-12, atol=1e-12)


@given(SIZES, SIZES, SIZES)
def test_closed_form_is_what_the_simulation_takes(m, n, k):
    a, b = operands(m, n, k)
    for simulate in SIMULATE.values():
        result = simulate(a, b)
        assert result.cycles == cycles(m, n, k)
        assert result.busy[0] == 1, "only the corner works in the first cycle"
        assert result.busy[-1] == 1, "and only the opposite corner in the last"


@given(SIZES, SIZES, SIZES)
def test_every_multiply_add_happens_once(m, n, k):
    a, b = operands(m, n, k)
    for dataflow, simulate in SIMULATE.items():
        result = simulate(a, b)
        per_element = k if dataflow == "output stationary" else m
        assert result.multiply_adds == m * n * k
        assert (result.occupancy.sum(axis=0) == per_element).all()
        assert result.utilisation == pytest.approx(m * n * k / result.occupancy.size)


def test_each_element_works_from_the_moment_the_wavefront_reaches_it():
    result = output_stationary(*operands(3, 4, 5))
    for row in range(3):
        for column in range(4):
            working = np.flatnonzero(result.occupancy[:, row, column])
            assert working.tolist() == list(range(row + column, row + column + 5))


def test_a_long_stream_fills_the_array_and_a_short_one_never_does():
    assert output_stationary(*operands(4, 4, 100)).busy.max() == 16
    assert output_stationary(*operands(4, 4, 3)).busy.max() < 16
    assert weight_stationary(*operands(100, 4, 4)).utilisation == pytest.approx(100 / 106)


def test_weights_take_as_many_cycles_to_load_as_there_are_rows():
    assert weight_stationary(*operands(2, 3, 7)).load_cycles == 7


@pytest.mark.parametrize("shapes", [((2, 3), (4, 5)), ((2,), (2, 2)), ((0, 3), (3, 2))])
def test_operands_that_do_not_multiply_are_rejected(shapes):
    with pytest.raises(ValueError, match=r"expected (\(m, k\)|a positive size)"):
        output_stationary(np.zeros(shapes[0]), np.zeros(shapes[1]))


def simulated(part, dataflow, a, b, rows):
    """One pass simulated; weight stationary fills an edge block up with zero weights, as the hardware does."""
    left, right = a[part.rows, part.depth], b[part.depth, part.columns]
    if dataflow == "output stationary":
        return output_stationary(left, right)
    filling = rows - left.shape[1]
    return weight_stationary(np.pad(left, ((0, 0), (0, filling))), np.pad(right, ((0, filling), (0, 0))))


@pytest.mark.parametrize("dataflow", DATAFLOWS)
@given(SIZES, SIZES, SIZES, SIZES, SIZES, st.booleans())
def test_tiles_do_the_whole_product_once_and_fit_the_array(dataflow, m, n, k, rows, columns, overlapped):
    a, b = operands(m, n, k)
    tiling = tile(m, n, k, (rows, columns), dataflow=dataflow, overlapped=overlapped)
    c = np.zeros((m, n))
    for part in tiling.tiles:
        result = simulated(part, dataflow, a, b, rows)
        assert result.cycles == part.cycles
        assert result.occupancy.shape[1] <= rows
        assert result.occupancy.shape[2] <= columns
        c[part.rows, part.columns] += result.product
    np.testing.assert_allclose(c, a @ b, rtol=1e-12, atol=1e-12)
    assert tiling.multiply_adds == m * n * k
    assert tiling.utilisation == pytest.approx(m * n * k / (rows * columns * tiling.cycles))


@pytest.mark.parametrize("dataflow", DATAFLOWS)
@pytest.mark.parametrize("overlapped", [True, False])
@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_no_element_ever_has_two_products_in_one_cycle(dataflow, overlapped, m, n, k, rows, columns):
    a, b = operands(m, n, k)
    tiling = tile(m, n, k, (rows, columns), dataflow=dataflow, overlapped=overlapped)
    work = np.zeros((tiling.cycles, rows, columns), dtype=int)
    for part in tiling.tiles:
        occupancy = simulated(part, dataflow, a, b, rows).occupancy
        work[part.start : part.start + part.cycles, : occupancy.shape[1], : occupancy.shape[2]] += occupancy
    assert work.max() == 1
    assert work[-1].any(), "and the last cycle is needed"


def test_without_overlap_the_passes_follow_one_another():
    tiling = tile(256, 128, 128, overlapped=False)
    assert tiling.cycles == 256 + 128 + 128 - 2
    assert tile(256, 256, 128, overlapped=False).cycles == 2 * tiling.cycles


def test_a_stream_shorter_than_the_array_waits_for_the_next_weights():
    assert [part.start for part in tile(1, 256, 128).tiles] == [0, 128]
    assert tile(1, 4096, 4096).utilisation < 0.01, "one token at a time: the array mostly loads weights"
    assert tile(4096, 4096, 4096).utilisation > 0.99


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"m": 0, "n": 1, "k": 1}, "m = 0"),
        ({"m": 1, "n": 1, "k": 1, "array": (0, 4)}, "array = "),
        ({"m": 1, "n": 1, "k": 1, "dataflow": "input stationary"}, "dataflow = 'input stationary'"),
    ],
)
def test_wrong_sizes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        tile(**arguments)
