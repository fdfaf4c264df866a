"""Copies beside kernels are right in every order that a device may do them in; no wait is missing, and none is idle.

The order is a simulated device's. Whether copies and kernels do overlap is a question for a GPU.
"""

from itertools import islice

import pytest
import torch
from simulated_device import Event, SimulatedDevice, Stream
from threeloops.data.loading.device_feed import DeviceFeed
from threeloops.data.loading.loader import Loader
from threeloops.data.loading.sampler import SamplerState, epoch_order
from threeloops.inner.memory.offload import HostStore, OffloadedAdamW, StreamChannel

SEEDS = range(40)
BATCHES = [torch.arange(n * 8, n * 8 + 8).reshape(4, 2) for n in range(6)] + [torch.full((3, 2), 99)]


def fed(monkeypatch, seed, buffers, count, kernels=2):
    """What the kernels of each step find in their batch, whenever they come to run."""
    device, found = SimulatedDevice(seed), []
    device.install(monkeypatch)
    device.host(*BATCHES)
    with device:
        for step, batch in enumerate(DeviceFeed(BATCHES[:count], "cuda", buffers)):
            for _ in range(kernels):
                device.launch(lambda step=step, batch=batch: found.append((step, batch.tolist())))
        device.synchronize()
    return found


@pytest.mark.parametrize("buffers", [2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_every_kernel_reads_the_batch_that_it_was_given(monkeypatch, buffers, count):
    expected = [(step, batch.tolist()) for step, batch in enumerate(BATCHES[:count]) for _ in range(2)]
    for seed in SEEDS:
        assert fed(monkeypatch, seed, buffers, count) == expected, seed


@pytest.mark.parametrize("forgotten", [(Event, "synchronize"), (Stream, "wait_event"), (Event, "record")])
def test_a_feed_that_forgets_to_wait_is_found_out(monkeypatch, forgotten):
    """Without the host's wait a pinned buffer is overwritten; without the streams' waits, or without events to wait
    for, a kernel runs before its copy, or a copy before the kernel that still reads."""
    monkeypatch.setattr(*forgotten, lambda *_: None)
    expected = [(step, batch.tolist()) for step, batch in enumerate(BATCHES) for _ in range(2)]
    assert any(fed(monkeypatch, seed, 2, 7) != expected for seed in SEEDS)


@pytest.mark.parametrize("buffers", [2, 3])
@pytest.mark.parametrize("steps", range(5))
def test_a_loader_behind_a_feed_counts_what_was_trained_on(monkeypatch, buffers, steps):
    """The feed draws batches in advance; the state of each comes out beside it."""
    for seed in SEEDS:
        device, trained_on = SimulatedDevice(seed), []
        device.install(monkeypatch)
        loader = Loader(host_batch(device), 10, 3, SamplerState(5))
        with device:
            for batch, after in islice(DeviceFeed(loader.with_states(), "cuda", buffers), steps):
                device.launch(lambda batch=batch, into=trained_on: into.extend(batch.tolist()))
                loader.state = after
            device.synchronize()
        assert trained_on == epoch_order(10, 5, 0)[: 3 * steps].tolist(), seed
        assert loader.state == (SamplerState(5, 0, 3 * steps) if steps < 4 else SamplerState(5, 1, 0))


def host_batch(device):
    def load(indices):
        batch = torch.as_tensor(indices)
        device.host(batch)
        return batch

    return load


def test_several_tensors_in_a_batch_are_refused_and_not_left_on_the_host(monkeypatch):
    device = SimulatedDevice(0)
    device.install(monkeypatch)
    with device, pytest.raises(ValueError, match="several tensors"):
        list(DeviceFeed([(torch.zeros(3), torch.zeros(3))], "cuda"))


SHAPES = [(5, 3), (7,), (1,)]


def weights(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in SHAPES]


def give_gradients(parameters, step):
    generator = torch.Generator().manual_seed(step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def offloaded(monkeypatch, seed, buffers, steps=3):
    """Weights and moments after some steps whose copies run on a stream of their own."""
    device, store, parameters = SimulatedDevice(seed), HostStore(), weights()
    device.install(monkeypatch)
    optimizer = OffloadedAdamW(
        parameters, store=store, buffers=buffers, chunk_elements=4, channel=StreamChannel(), lr=0.1
    )
    device.host(*store.states.values())
    for step in range(steps):
        give_gradients(parameters, step)
        with device:
            optimizer.step()
    device.synchronize()
    return [*(p.detach() for p in parameters), *store.states.values()]


def resident(steps=3):
    parameters = weights()
    optimizer = torch.optim.AdamW(parameters, lr=0.1, foreach=False)
    for step in range(steps):
        give_gradients(parameters, step)
        optimizer.step()
    moments = (torch.cat([optimizer.state[p][kind].view(-1) for p in parameters]) for kind in ("exp_avg", "exp_avg_sq"))
    return [*(p.detach() for p in parameters), *moments]


def same(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_offloaded_steps_are_the_resident_ones_whatever_the_copies_do(monkeypatch, buffers):
    expected = resident()
    for seed in SEEDS:
        assert same(offloaded(monkeypatch, seed, buffers), expected), seed


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_on_a_stream_never_makes_the_host_wait_to_say_that_it_is_whole(monkeypatch, seed):
    device, store, parameters = SimulatedDevice(seed), HostStore(), weights()
    device.install(monkeypatch)
    optimizer = OffloadedAdamW(parameters, store=store, chunk_elements=4, channel=StreamChannel())
    device.host(*store.states.values())
    give_gradients(parameters, 0)

    def refused(*_):
        raise AssertionError("the host waited for the device")

    for waiting in (Stream, Event):
        monkeypatch.setattr(waiting, "synchronize", refused)
    with device:
        optimizer.step()
    assert optimizer.steps == 1
    optimizer.save()


@pytest.mark.parametrize("forgotten", ["wait_stream", "wait_event"])
def test_a_channel_that_forgets_to_wait_is_found_out(monkeypatch, forgotten):
    monkeypatch.setattr(Stream, forgotten, lambda *_: None)
    expected = resident()
    assert any(not same(offloaded(monkeypatch, seed, 2), expected) for seed in SEEDS)


def test_a_stream_that_waits_for_nothing_that_comes_is_a_deadlock():
    device = SimulatedDevice(0)
    stream, event = Stream(device), Event(device)
    event.recorded = 1  # by a stream that is not there
    stream.wait_event(event)
    with pytest.raises(RuntimeError, match="deadlock"):
        stream.synchronize()
