"""Errors name the argument, its value, what was expected and the next step."""

import pytest
import torch
from threeloops.inner.kernels import launching


def fails(function, *args, says, **kwargs):
    with pytest.raises((ValueError, TypeError)) as raised:
        function(*args, **kwargs)
    for words in says:
        assert words in str(raised.value)


def test_dtype():
    x = torch.zeros(4, dtype=torch.float64)
    fails(launching.require_tensors, x=x, says=("x is float64", "float16 or bfloat16 or float32", ".to(torch.float16)"))
    fails(launching.require_tensors, x=[1.0], says=("x is a list", "torch.Tensor"))


def test_tensors_of_two_dtypes(device):
    x, y = torch.zeros(4, device=device), torch.zeros(4, dtype=torch.float16, device=device)
    fails(launching.require_tensors, x=x, y=y, says=("y is float16", "x is float32", "y.to(x.dtype)"))
    launching.require_tensors(x=x, y=None)


def test_tensors_on_two_devices(device):
    x, y = torch.zeros(4, device=device), torch.zeros(4, device="meta")
    fails(launching.require_one_device, x=x, y=y, says=("y is on meta", f"x is on {device}", "y.to(x.device)"))


def test_shapes():
    x = torch.zeros(2, 3)
    fails(launching.require_shape, "x", x, (3,), "one a column", says=("x has shape (2, 3)", "(3,)", "one a column"))
    fails(launching.require_dimensions, "x", x, "batch, rows, columns", says=("(2, 3)", "3 dimensions", "reshape"))
    fails(launching.require_columns, "x", torch.zeros(2, 0), says=("(2, 0)", "at least 1 element"))
    fails(launching.require_columns, "x", torch.zeros(()), says=("no dimensions",))
    assert launching.require_columns("x", x) == 3


def test_numbers():
    fails(launching.require_head_dim, 48, (32, 64), says=("head_dim = 48", "32, 64", "pad"))
    fails(launching.require_head_dim, 96, (32, 64), says=("head_dim = 96", "32, 64", "torch"))
    fails(launching.require_divides, "kv_heads", 3, "heads", 8, says=("kv_heads = 3", "heads = 8"))
    fails(launching.require_fraction, "p", 1.01, says=("p = 1.01", "from 0 to 1"))
    fails(launching.require_fraction, "p", float("nan"), says=("p = nan",))
    fails(launching.require_finite, "scale", float("inf"), says=("scale = inf",))
    launching.require_fraction("p", 1.0)
