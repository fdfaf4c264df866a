"""Questions of ranks to functions that run beside the router: who gets what is known there, and costs no time."""

import pytest
import torch
import torch.distributed as dist
from threeloops.training.cluster import Cluster, RankDies, RankFailed, ask, compute, now
from threeloops.training.cluster.programs.tensors import DTYPES, packed, unpacked


def test_each_rank_gets_its_own_part_and_the_function_knows_who_asked_for_what():
    parts, asked = [torch.arange(4.0) * 10**rank for rank in range(3)], []

    def part(rank, start, stop):
        asked.append((rank, start, stop))
        return parts[rank][start:stop]

    def program():
        total = ask("part", 1, 3)
        dist.all_reduce(total)
        return total

    run = Cluster(3).run(program, served={"part": part})
    assert all(torch.equal(got, sum(parts)[1:3]) for got in run.results)
    assert sorted(asked) == [(0, 1, 3), (1, 1, 3), (2, 1, 3)]


def test_a_question_takes_no_time_and_no_message():
    def program():
        compute(0.5)
        ask("nothing")
        return now()

    run = Cluster(2).run(program, served={"nothing": lambda rank: None})
    assert run.results == (0.5, 0.5) and run.messages == ()


def test_a_collective_under_way_goes_on_while_a_rank_asks():
    def program():
        x = torch.ones(1000)
        work = dist.all_reduce(x, async_op=True)
        doubled = ask("double", torch.ones(2))
        work.wait()
        return x[0].item(), doubled.tolist()

    run = Cluster(2).run(program, served={"double": lambda rank, x: 2 * x})
    assert run.results == ((2.0, [2.0, 2.0]),) * 2


def test_a_rank_that_has_died_gets_no_answer():
    def program():
        compute(1.0)
        return ask("part")

    run = Cluster(2, [RankDies(1, 0.5)]).run(program, served={"part": lambda rank: rank})
    assert run.results == (0, None)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("half", (0,), "cannot be halved"),
        ("whole", (), "rank 0 asks for 'whole': served here are ['half']"),
        ("half", (1, 2, 3), "positional argument"),
    ],
)
def test_an_error_of_the_function_or_of_the_question_is_raised_where_the_rank_asks(name, arguments, message):
    def half(rank, number):
        if not number:
            raise ValueError("0 cannot be halved")
        return number / 2

    def program():
        ask(name, *arguments)

    with pytest.raises(RankFailed) as failure:
        Cluster(1).run(program, served={"half": half})
    assert message in str(failure.value)


def test_outside_of_a_cluster_there_is_nobody_to_ask():
    with pytest.raises(RuntimeError, match="only ranks of a virtual cluster can ask"):
        ask("part")


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (3,), (2, 3)], ids=str)
def test_a_tensor_arrives_as_it_was(dtype, shape):
    tensor = torch.ones(shape).to(dtype)
    [[got, word]] = unpacked(packed([(tensor, "word")]))
    assert word == "word" and got.dtype == dtype and got.shape == tensor.shape
    assert torch.equal(
        got.view(torch.uint8) if dtype.itemsize == 1 else got,
        tensor.view(torch.uint8) if dtype.itemsize == 1 else tensor,
    )


def test_a_tensor_that_is_not_contiguous_or_has_a_gradient_arrives_too():
    tensor = torch.arange(6.0).view(2, 3).requires_grad_()
    assert torch.equal(unpacked(packed(tensor.T)), tensor.detach().T)


@pytest.mark.parametrize("value", [object(), print, torch.ones(2).to_sparse(), {1, 2}.__iter__()])
def test_what_is_not_plain_is_refused(value):
    with pytest.raises((TypeError, RuntimeError)):
        packed(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xc7\x01\x02\x00",
        packed(torch.ones(2))[:-1],
        packed(torch.ones(2)).replace(b"float32", b"float64"),
    ],
)
def test_bytes_that_say_nothing_are_refused(data):
    with pytest.raises(ValueError):
        unpacked(data)
