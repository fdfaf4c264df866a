"""saxpy: y ← a·x + y."""

import pytest
import torch
from threeloops.inner.kernels.rows.saxpy import _configuration, cost, reference, saxpy

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("elements", (1, 127, 128, 129, 5000))
def test_values(normal, as_accurate_as, elements, dtype):
    x, y = normal(elements, dtype=dtype), normal(elements, dtype=dtype, seed=1)
    exact = 2.5 * x.double() + y.double()
    as_accurate_as(saxpy(2.5, x, y), exact, torch.add(y, x, alpha=2.5))
    torch.testing.assert_close(reference(2.5, x.double(), y.double()), exact)


def test_the_inputs_stay_as_they_are(normal):
    x, whole = normal(1000), normal(1300, seed=1)
    before = x.clone(), whole.clone()
    torch.testing.assert_close(saxpy(3.0, x, whole[100:1100]), 3.0 * before[0] + before[1][100:1100])
    assert torch.equal(x, before[0]) and torch.equal(whole, before[1])


def test_what_is_not_contiguous_is_copied_first(normal):
    x, y = normal(70, 33), normal(33, 70, seed=1)
    torch.testing.assert_close(saxpy(2.0, x.T, y), 2 * x.T + y)


def test_empty(device):
    nothing = torch.empty(0, 5, device=device)
    assert saxpy(2.0, nothing, nothing).shape == (0, 5)


def test_other_shapes_are_refused(normal):
    with pytest.raises(ValueError, match=r"y has shape \(4,\): expected \(5,\)"):
        saxpy(1.0, normal(5), normal(4))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_byte_moves_once(interpreted, normal, dtype):
    from threeloops.inner.meter import meter

    elements = 10_007
    x, y = normal(elements, dtype=dtype), normal(elements, dtype=dtype, seed=1)
    with meter() as traffic:
        saxpy(2.0, x, y)
    assert traffic.total.requested_bytes == traffic.total.unique_bytes == cost(elements, dtype.itemsize).bytes
    assert traffic.total.programs == -(-elements // _configuration(dtype.itemsize).constants["BLOCK"])
    assert not traffic.findings


def test_code(entry, clean_code):
    (code,) = clean_code(entry("saxpy"), "sm_90")
    assert set(code.loads) == {128} and set(code.stores) == {128}
