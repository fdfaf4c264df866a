"""Calls as other people make them: refused if gloo or NCCL refuse them, DDP with its time, files of any size."""

import os
import tempfile
import time

import pytest
import torch
import torch.distributed as dist
from threeloops.training.cluster import Cluster, RankFailed, compute, now, run_on_processes, synchronize
from torch import nn

ALPHA, BETA = 10e-6, 1e9
"""Seconds per message and bytes per second of the links of `Cluster(2)`."""


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(*shape, dtype=dtype)


def both(make):
    return [make() for _ in range(dist.get_world_size())]


def on_root(make):
    return both(make) if dist.get_rank() == 0 else None


def all_gather_of_one_into_four():
    dist.all_gather(both(lambda: zeros(4)), zeros(1))


def all_gather_of_another_shape():
    dist.all_gather(both(lambda: zeros(2, 3)), zeros(6))


def all_gather_into_one_tensor():
    dist.all_gather([zeros(1)], zeros(1))


def all_gather_into_int32():
    dist.all_gather_into_tensor(zeros(2, dtype=torch.int32), zeros(1))


def all_gather_into_a_row():
    dist.all_gather_into_tensor(zeros(1, 2), zeros(1))


def reduce_scatter_into_bfloat16():
    dist.reduce_scatter_tensor(zeros(2, dtype=torch.bfloat16), zeros(4))


def reduce_scatter_of_a_longer_list():
    dist.reduce_scatter(zeros(1), both(lambda: zeros(4)))


def reduce_scatter_of_one_tensor():
    dist.reduce_scatter(zeros(1), [zeros(1)])


def all_to_all_with_another_own_part():
    sizes = [1, 1]
    sizes[dist.get_rank()] = 3
    dist.all_to_all_single(zeros(4), zeros(2), sizes, [1, 1])


def all_to_all_with_too_few_split_sizes():
    dist.all_to_all_single(zeros(2), zeros(2), [2], [2])


def all_to_all_with_short_split_sizes():
    dist.all_to_all_single(zeros(2), zeros(3), [1, 1], [1, 1])


def all_to_all_list_with_another_own_part():
    out = both(lambda: zeros(1))
    out[dist.get_rank()] = zeros(3)
    dist.all_to_all(out, both(lambda: zeros(1)))


def all_to_all_of_a_transposed_tensor():
    dist.all_to_all_single(zeros(2, 2), zeros(2, 2).t())


def gather_into_one_tensor():
    dist.gather(zeros(1), [zeros(1)] if dist.get_rank() == 0 else None)


def gather_of_another_shape():
    dist.gather(zeros(1), on_root(lambda: zeros(4)))


def scatter_of_one_tensor():
    dist.scatter(zeros(1), [zeros(1)] if dist.get_rank() == 0 else None)


def scatter_of_another_shape():
    dist.scatter(zeros(1), on_root(lambda: zeros(4)))


def send_of_a_transposed_tensor():
    if dist.get_rank() == 0:
        dist.send(zeros(2, 3).t(), 1)
    else:
        dist.recv(zeros(3, 2), 0)


def receive_into_a_transposed_tensor():
    if dist.get_rank() == 0:
        dist.send(zeros(3, 2), 1)
    else:
        dist.recv(zeros(2, 3).t(), 0)


def average_of_integers():
    dist.all_reduce(zeros(2, dtype=torch.int64), dist.ReduceOp.AVG)


def sum_of_int16():
    dist.all_reduce(zeros(2, dtype=torch.int16))


REFUSED = {
    all_gather_of_one_into_four: r"tensor_list\[\d\] is float32 of shape \(4,\), and tensor is float32 of shape \(1,\)",
    all_gather_of_another_shape: r"float32 of shape \(2, 3\), and tensor is float32 of shape \(6,\)",
    all_gather_into_one_tensor: "tensor_list has 1 tensors: expected one for each rank",
    all_gather_into_int32: r"input is float32 of shape \(1,\), and output is int32 of shape \(2,\)",
    all_gather_into_a_row: r"expected 2 times as many elements in output, float32 of shape \(2,\) or \(2, 1\)",
    reduce_scatter_into_bfloat16: r"output is bfloat16 of shape \(2,\), and input is float32 of shape \(4,\)",
    reduce_scatter_of_a_longer_list: r"input_list\[\d\] is float32 of shape \(4,\), and output is float32",
    reduce_scatter_of_one_tensor: "input_list has 1 tensors: expected one for each rank",
    all_to_all_with_another_own_part: "keeps 1 elements of its own input, and its output has room for 3",
    all_to_all_with_too_few_split_sizes: "Number of tensor splits|expected 2 numbers with the sum 2",
    all_to_all_with_short_split_sizes: "Split sizes doesn't match|expected 2 numbers with the sum 3",
    all_to_all_list_with_another_own_part: r"output_list\[\d\] is float32 of shape \(3,\)",
    all_to_all_of_a_transposed_tensor: "must be contiguous|not contiguous",
    gather_into_one_tensor: "gather_list has 1 tensors|Incorrect output list size",
    gather_of_another_shape: r"gather_list\[0\] is float32 of shape \(4,\), and tensor is float32 of shape \(1,\)",
    scatter_of_one_tensor: "scatter_list has 1 tensors|Incorrect input list size",
    scatter_of_another_shape: r"scatter_list\[0\] is float32 of shape \(4,\), and tensor is float32 of shape \(1,\)",
    send_of_a_transposed_tensor: r"send: its tensor has shape \(3, 2\) and strides \(1, 3\), so it is not contiguous",
    receive_into_a_transposed_tensor: "recv: its tensor has shape",
    average_of_integers: "AVG of int64, whose mean may not be an integer",
    sum_of_int16: "no backend has collectives of int16",
}


@pytest.mark.parametrize("program", REFUSED, ids=lambda program: program.__name__)
def test_what_gloo_refuses_is_refused_with_shapes_dtypes_and_line(program):
    with pytest.raises(RankFailed, match=REFUSED[program]) as failed:
        Cluster(2).run(program)
    assert f"in {program.__name__}" in str(failed.value)


@pytest.mark.slow
@pytest.mark.parametrize("program", REFUSED, ids=lambda program: program.__name__)
def test_gloo_itself_refuses_it(program):
    with pytest.raises(RankFailed):
        run_on_processes("gloo", 2, program, seconds=20)


def transposed(operation):
    x = torch.arange(6.0).reshape(2, 3).t()
    call = {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "reduce": lambda: dist.reduce(x, 0),
        "all_gather": lambda: dist.all_gather(both(lambda: zeros(3, 2)), x),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(zeros(6, 2), x),
        "reduce_scatter": lambda: dist.reduce_scatter(zeros(3, 2), both(lambda: x)),
        "all_to_all": lambda: dist.all_to_all(both(lambda: zeros(3, 2)), both(lambda: x)),
        "gather": lambda: dist.gather(x, on_root(lambda: zeros(3, 2))),
        "scatter": lambda: dist.scatter(x, on_root(lambda: zeros(3, 2))),
    }
    call[operation]()


@pytest.mark.parametrize(
    "operation",
    ["all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "all_to_all",
     "gather", "scatter"],
)  # fmt: skip
def test_a_tensor_that_is_not_contiguous_is_refused_as_nccl_does(operation):
    with pytest.raises(RankFailed, match=r"has shape \(3, 2\) and strides \(1, 3\), so it is not contiguous"):
        Cluster(2).run(transposed, operation)


def channels_last_and_strided_outputs():
    image = torch.arange(8.0).reshape(1, 2, 2, 2).to(memory_format=torch.channels_last)
    dist.all_reduce(image)
    outputs = both(lambda: zeros(2, 3).t())
    dist.all_gather(outputs, torch.arange(6.0).reshape(3, 2))
    uneven = [zeros(1), zeros(2)]
    dist.all_gather(uneven, torch.full((1 + dist.get_rank(),), 7.0))
    return image.flatten().tolist(), outputs[1].tolist(), [each.tolist() for each in uneven]


def test_what_nccl_takes_is_taken():
    image, output, uneven = Cluster(2).run(channels_last_and_strided_outputs).results[0]
    assert image == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]
    assert output == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert uneven == [[7.0], [7.0, 7.0]]


def trains_with_ddp(steps):
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(1000, 1000, bias=False))
    synchronize()
    start = now()
    for _ in range(steps):
        compute(5e-3, "forward")
        ddp(torch.ones(1, 1000)).sum().backward()
        compute(1e-3, "optimizer")
    return now() - start


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_torchs_ddp_is_charged_when_the_backward_pass_ends(steps):
    """Two ranks send 2 MB each to the other, twice; the clock is read right after the last step."""
    step = 6e-3 + 2 * (ALPHA + 2e6 / BETA)
    run = Cluster(2).run(trains_with_ddp, steps)
    assert run.results == pytest.approx([steps * step] * 2)
    # on each rank the optimizer begins after the last all-reduce of its step
    collectives = sorted(span.end for span in run.collectives if span.rank == 0)
    optimizer = sorted(span.start for span in run.spans if span.rank == 0 and span.what == "optimizer")
    assert all(any(abs(begin - end) < 1e-9 for end in collectives) for begin in optimizer)


def ddp_and_then_a_message():
    torch.manual_seed(0)
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    ddp(torch.ones(4, 64)).sum().backward()
    other = 1 - dist.get_rank()
    mine, theirs = torch.full((2,), float(dist.get_rank())), torch.zeros(2)
    for work in (dist.isend(mine, other), dist.irecv(theirs, other)):
        work.wait()
    return theirs.tolist(), ddp.module.weight.grad.sum().item()


def test_a_message_may_follow_a_backward_pass_of_ddp():
    assert list(Cluster(2).run(ddp_and_then_a_message).results) == run_on_processes("gloo", 2, ddp_and_then_a_message)


def polls():
    x = torch.ones(1 << 18)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        time.sleep(1e-3)
    return x[0].item(), now()


def test_polling_a_handle_ends_and_takes_the_time_of_the_collective():
    for value, clock in Cluster(2).run(polls).results:
        assert value == 2 and clock == pytest.approx(2 * (ALPHA + (1 << 19) / BETA))


def polls_in_vain():
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        while not work.is_completed():
            pass


def test_polling_for_a_collective_that_others_never_call_names_the_line():
    with pytest.raises(Exception, match=r"test_foreign_calls\.py:\d+.*which rank 1 did not call"):
        Cluster(2).run(polls_in_vain)


def writes_large_files():
    with tempfile.TemporaryDirectory() as folder:
        torch.save(torch.zeros(300_000), path := f"{folder}/weights.pt")
        size = os.path.getsize(path)
    data = torch.utils.data.TensorDataset(torch.ones(64, 3, 64, 64))
    seen = sum(len(batch[0]) for batch in torch.utils.data.DataLoader(data, 32, num_workers=1))
    return size > 1_200_000, torch.zeros(300_000).share_memory_().numel(), seen


def test_a_rank_writes_files_and_shared_memory_of_any_size():
    assert Cluster(1).run(writes_large_files).results == ((True, 300_000, 64),)


def prints_three_megabytes():
    for _ in range(30_000):
        print("x" * 99)
    return "done"


def test_a_rank_that_prints_too_much_goes_on_and_keeps_the_first_mebibyte():
    run = Cluster(2).run(prints_three_megabytes)
    lines = run.printed.splitlines()
    assert run.results == ("done", "done")
    assert sum(line.endswith("x" * 99) for line in lines) >= 2 * 10_000
    assert len(run.printed) < 2 * (1 << 20) * 1.2
    assert sum("more than 1,048,576 bytes were printed: the rest is not kept" in line for line in lines) == 2
