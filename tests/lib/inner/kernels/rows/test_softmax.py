"""Softmax of rows, forward and backward."""

import pytest
import torch
from threeloops.inner.kernels.rows.softmax import _LONG_ROWS, backward_reference, reference, softmax

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SHAPES = ((1, 1), (127, 129), (129, 127), (3, 4096), (2, 3, 128), (2, 40_001))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values(normal, as_accurate_as, gradients, shape, dtype):
    x, dy = normal(*shape, dtype=dtype, scale=3), normal(*shape, dtype=dtype, seed=1)
    as_accurate_as(softmax(x), x.double().softmax(-1), x.softmax(-1))
    (exact,) = gradients(lambda x: x.softmax(-1), [x], dy, exact=True)
    (peer,) = gradients(lambda x: x.softmax(-1), [x], dy)
    (actual,) = gradients(softmax, [x], dy)
    as_accurate_as(actual, exact, peer, what="dx")


def test_references(normal):
    x, dy = normal(5, 33).double(), normal(5, 33, seed=1).double()
    y = x.softmax(-1)
    torch.testing.assert_close(reference(x), y)
    torch.testing.assert_close(backward_reference(dy, y), torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype))


@pytest.mark.parametrize("columns", (7, 2 * _LONG_ROWS.constants["BLOCK"] + 40_000))
def test_large_scores_do_not_overflow_and_masked_ones_count_nothing(device, columns):
    x = torch.zeros(5, columns, device=device)
    x[0] = 1e4
    x[1, 3] = 1e4
    x[2, :-1] = -float("inf")  # the only score that counts is the last one
    x[3] = -float("inf")
    x[4, 2] = float("nan")
    assert torch.equal(softmax(x).nan_to_num(-1), x.softmax(-1).nan_to_num(-1))
    assert softmax(x)[3].isnan().all()  # as in torch: there is no maximum to subtract


def test_strides(normal):
    x = normal(130, 140)
    for view in (x.T, x[::2, 3:], x[:, ::3], x[:1].expand(4, 140), x.reshape(10, 13, 140).transpose(0, 1)):
        torch.testing.assert_close(softmax(view), view.softmax(-1))
        assert softmax(view).is_contiguous()


def test_rows_farther_apart_than_32_bits_reach(device):
    storage = torch.empty(2**31 + 128, dtype=torch.float16, device=device)  # untouched memory takes no room
    x = storage.as_strided((2, 128), (2**31, 1))
    x.copy_(torch.arange(256, device=device).reshape(2, 128) / 64)
    torch.testing.assert_close(softmax(x), x.softmax(-1))


def test_empty(device):
    x = torch.empty(0, 5, device=device, requires_grad=True)
    softmax(x).sum().backward()
    assert x.grad.shape == (0, 5)
    with pytest.raises(ValueError, match=r"\(5, 0\): expected rows of at least 1 element"):
        softmax(torch.empty(5, 0, device=device))


def test_traffic(entry, least_traffic):
    least_traffic(entry("softmax"))
    least_traffic(entry("softmax_backward"))


@pytest.mark.parametrize(("columns", "readings"), ((4096, 1), (40_000, 2)))
def test_a_row_that_fits_is_read_once_a_longer_one_twice(interpreted, normal, columns, readings):
    from threeloops.inner.meter import meter

    x = normal(3, columns, dtype=torch.float16)
    with meter() as traffic:
        softmax(x)
    assert traffic.total.requested_loaded == readings * 2 * x.numel()
    assert traffic.total.requested_stored == 2 * x.numel()


def test_code(entry, clean_code):
    (code,) = clean_code(entry("softmax"), "sm_90")
    assert set(code.loads) == {128} and set(code.stores) == {128}
