"""Bytes of eager operators, counted by hand."""

import pytest
import torch
from threeloops.inner.eager_traffic import Operation, eager_traffic
from torch.nn import functional as F


def moved(function):
    with eager_traffic() as operations:
        function()
    return operations


def test_four_elementwise_operations_make_eight_passes():
    x = torch.randn(1000)
    operations = moved(lambda: torch.tanh(torch.exp(-x) * 2.0))
    assert [each.name for each in operations] == ["aten.neg", "aten.exp", "aten.mul", "aten.tanh"]
    assert sum(each.bytes for each in operations) == 8 * x.nbytes


def test_a_broadcast_operand_counts_at_its_own_size():
    x, bias = torch.randn(64, 100), torch.randn(100)
    assert moved(lambda: x + bias) == [Operation("aten.add", x.nbytes + bias.nbytes, x.nbytes)]
    assert moved(lambda: x + bias.expand(64, 100))[-1].read == x.nbytes + bias.nbytes


def test_views_and_allocations_move_nothing():
    x = torch.randn(8, 8)
    assert moved(lambda: (x.T, x[1:], x.reshape(4, 16), torch.empty(5), torch.empty_like(x))) == []
    assert moved(lambda: x.T.contiguous())[0].bytes == 2 * x.nbytes


def test_an_operator_in_place_reads_and_writes():
    x = torch.randn(10)
    assert moved(lambda: x.mul_(2.0)) == [Operation("aten.mul_", 40, 40)]
    assert moved(lambda: x.copy_(torch.zeros(10)))[-1] == Operation("aten.copy_", 40, 40)


def test_one_tensor_given_twice_is_read_once():
    x = torch.randn(10)
    assert moved(lambda: x * x) == [Operation("aten.mul", 40, 40)]


def test_backward_is_seen_too():
    x = torch.randn(16, 32, requires_grad=True)
    forward = len(moved(lambda: F.gelu(x)))
    assert len(moved(lambda: F.gelu(x).sum().backward())) > forward + 1


@pytest.mark.parametrize("size", [0, 1])
def test_nothing_and_one_element(size):
    x = torch.randn(size)
    assert sum(each.bytes for each in moved(lambda: x + 1)) == 8 * size
