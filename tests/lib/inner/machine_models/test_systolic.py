"""Systolic arrays: the product, the cycles and the wavefront."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner.machine_models.systolic import cycles, output_stationary, tile

SIZES = st.integers(1, 9)


def operands(m, n, k, seed=0):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((m, k)), generator.standard_normal((k, n))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 7, 3), (5, 1, 4), (3, 4, 1), (7, 5, 13), (16, 17, 15)])
def test_product_is_that_of_float64_numpy(m, n, k):
    a, b = operands(m, n, k)
    np.testing.assert_allclose(output_stationary(a, b).product, a @ b, rtol=1e-12, atol=1e-12)


@given(SIZES, SIZES, SIZES)
def test_closed_form_is_what_the_simulation_takes(m, n, k):
    result = output_stationary(*operands(m, n, k))
    assert result.cycles == cycles(m, n, k)
    assert result.busy[0] == 1, "only the corner works in the first cycle"
    assert result.busy[-1] == 1, "and only the opposite corner in the last"


@given(SIZES, SIZES, SIZES)
def test_every_multiply_add_happens_once(m, n, k):
    result = output_stationary(*operands(m, n, k))
    assert result.occupancy.sum() == m * n * k
    assert (result.occupancy.sum(axis=0) == k).all()


def test_each_element_works_from_the_moment_the_wavefront_reaches_it():
    result = output_stationary(*operands(3, 4, 5))
    for row in range(3):
        for column in range(4):
            working = np.flatnonzero(result.occupancy[:, row, column])
            assert working.tolist() == list(range(row + column, row + column + 5))


def test_a_long_stream_fills_the_array_and_a_short_one_never_does():
    assert output_stationary(*operands(4, 4, 100)).busy.max() == 16
    assert output_stationary(*operands(4, 4, 3)).busy.max() < 16


@pytest.mark.parametrize("shapes", [((2, 3), (4, 5)), ((2,), (2, 2)), ((0, 3), (3, 2))])
def test_operands_that_do_not_multiply_are_rejected(shapes):
    with pytest.raises(ValueError, match=r"expected (\(m, k\)|a positive size)"):
        output_stationary(np.zeros(shapes[0]), np.zeros(shapes[1]))


def occupancy(part, m, rows):
    """Cycle × row × column where an array that holds weights multiplies: A[i, r] meets column c in cycle i + r + c.

    An edge block is filled up with zero weights below, as in the hardware, so all rows of the array take part.
    """
    row, column = np.arange(rows)[:, None], np.arange(part.columns.stop - part.columns.start)
    step = np.arange(m + rows + len(column) - 2)[:, None, None] - row - column
    return (step >= 0) & (step < m)


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_tiles_do_the_whole_product_once_and_fit_the_array(m, n, k, rows, columns):
    a, b = operands(m, n, k)
    tiling = tile(m, n, k, (rows, columns))
    c = np.zeros((m, n))
    for part in tiling.tiles:
        assert part.cycles == len(occupancy(part, m, rows))
        assert part.depth.stop - part.depth.start <= rows
        assert part.columns.stop - part.columns.start <= columns
        c[:, part.columns] += a[:, part.depth] @ b[part.depth, part.columns]
    np.testing.assert_allclose(c, a @ b, rtol=1e-12, atol=1e-12)
    assert tiling.multiply_adds == m * n * k
    assert tiling.utilisation == pytest.approx(m * n * k / (rows * columns * tiling.cycles))


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_no_element_ever_has_two_products_in_one_cycle(m, n, k, rows, columns):
    tiling = tile(m, n, k, (rows, columns))
    work = np.zeros((tiling.cycles, rows, columns), dtype=int)
    for part in tiling.tiles:
        occupied = occupancy(part, m, rows)
        work[part.start : part.start + part.cycles, :, : occupied.shape[2]] += occupied
    assert work.max() == 1
    assert work[-1].any(), "and the last cycle is needed"


def test_a_stream_shorter_than_the_array_waits_for_the_next_weights():
    assert [part.start for part in tile(1, 256, 128).tiles] == [0, 128]
    assert tile(1, 4096, 4096).utilisation < 0.01, "one token at a time: the array mostly loads weights"
    assert tile(4096, 4096, 4096).utilisation > 0.99


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"m": 0, "n": 1, "k": 1}, "m = 0"),
        ({"m": 1, "n": 1, "k": 1, "array": (0, 4)}, "array = "),
    ],
)
def test_wrong_sizes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        tile(**arguments)
