"""The last metre. What a CPU cannot show (overlap) is left to a GPU; order, values and refusals are the same."""

import pytest
import torch
from threeloops.data.loading.device_feed import DeviceFeed
from threeloops.data.loading.loader import Loader
from threeloops.data.loading.sampler import SamplerState

BATCHES = [torch.arange(n * 8, n * 8 + 8).reshape(4, 2) for n in range(5)] + [torch.full((3, 2), 99)]


def test_on_the_cpu_batches_pass_through_unchanged():
    given = list(DeviceFeed(BATCHES, "cpu"))
    assert all(got is batch for got, batch in zip(given, BATCHES, strict=True))


def test_one_buffer_cannot_be_filled_while_it_is_used():
    with pytest.raises(ValueError, match="buffers = 1"):
        DeviceFeed(BATCHES, "cpu", buffers=1)


@pytest.mark.parametrize("device", ["meta", "mps", torch.device("xpu", 0)])
def test_a_device_that_nothing_would_be_copied_to_is_refused(device):
    with pytest.raises(ValueError, match=f"'{device}': expected cpu or cuda"):
        DeviceFeed(BATCHES, device)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_loader_that_would_count_what_is_drawn_in_advance_is_refused(device):
    with pytest.raises(TypeError, match=r"expected loader\.with_states\(\)"):
        DeviceFeed(Loader(torch.as_tensor, 10, 3, SamplerState(0)), device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("buffers", [2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 6])
def test_on_cuda_every_batch_arrives_whole_while_kernels_run(buffers, count):
    slow = torch.randn(4096, 4096, device="cuda")
    sums = []
    for batch in DeviceFeed(BATCHES[:count], "cuda", buffers):
        slow = slow @ slow / 64  # the stream is still busy when the next batch is asked for
        sums.append(batch.clone())
    torch.cuda.synchronize()
    assert all(torch.equal(got.cpu(), batch) for got, batch in zip(sums, BATCHES[:count], strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_a_batch_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="expected the same, or fewer rows"):
        list(DeviceFeed([torch.zeros(4, 2), torch.zeros(4, 3)], "cuda"))
