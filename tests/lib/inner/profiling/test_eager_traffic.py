"""Bytes of eager operators, counted by hand."""

import pytest
import torch
from threeloops.inner.profiling.eager_traffic import Operation, eager_traffic
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


def test_what_is_written_over_is_not_read():
    x = torch.randn(10)
    assert moved(lambda: x.zero_()) == [Operation("aten.zero_", 0, 40)]
    assert moved(lambda: torch.ones_like(x)) == [Operation("aten.ones_like", 0, 40)]


def test_of_a_table_the_rows_that_are_picked():
    table, rows = torch.randn(1000, 16), torch.tensor([3, 999, 7])
    for pick in (lambda: F.embedding(rows, table), lambda: table.index_select(0, rows), lambda: table[rows]):
        (operation,) = moved(pick)
        assert (operation.read, operation.written) == (3 * 8 + 3 * 16 * 4, 3 * 16 * 4)
    columns = torch.zeros(1000, 2, dtype=torch.int64)
    assert moved(lambda: table.gather(1, columns))[-1].read == 1000 * 2 * (8 + 4)


def test_a_table_counts_at_most_once():
    table = torch.randn(2, 16)
    assert moved(lambda: F.embedding(torch.zeros(500, dtype=torch.int64), table))[-1].read == 500 * 8 + table.nbytes


def test_the_loss_reads_one_log_probability_a_row_and_its_gradient_none():
    logits, targets = torch.randn(256, 1000, requires_grad=True), torch.randint(1000, (256,))
    by_name = {each.name: each for each in moved(lambda: F.cross_entropy(logits, targets).backward())}
    forward, backward = by_name["aten.nll_loss_forward"], by_name["aten.nll_loss_backward"]
    assert (forward.read, forward.written) == (256 * (8 + 4), 8)  # a target and an element a row; loss and weight
    assert (backward.read, backward.written) == (256 * 8 + 8, logits.nbytes)
    large = sum(each.bytes for each in by_name.values()) / logits.nbytes
    assert 6 < large < 6.01


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
