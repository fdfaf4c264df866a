"""The two roles on virtual clocks give the times of the simulated deployment, whose code is another."""

import pytest
from threeloops.product.batching import CHUNKED, Engine, SimulatedExecutor
from threeloops.product.decode import BlockManager
from threeloops.product.disaggregated.real import replay_two_sides
from threeloops.product.loadgen import lognormal, poisson, trace, uniform
from threeloops.simulation.clock import VirtualClock
from threeloops.training.collectives.cost import Link

LAYERS, BLOCK, BLOCKS, TOKEN_BYTES = 6, 16, 300, 256
LINK = Link(latency=3e-5, bandwidth=4e8)


DECODE_STEP = 2e-3
"""Seconds of a step of 8 requests. A message that falls into a step waits for its end, so the smallest difference can
cost a token a step: the roles send whole blocks, and the prefill role hears of reserved blocks between its steps."""


def cost(shape):
    return 1.2e-3 + sum(1e-4 * count + 1e-7 * (start + count) for start, count, _ in shape.chunks)


class Clock(VirtualClock):
    def begin(self):
        pass

    def end(self):
        pass


class Cache:
    """A cache that holds nothing; its blocks have the right size."""

    layers, block_size, block_bytes, watch = range(LAYERS), BLOCK, BLOCK * TOKEN_BYTES, None

    def read_blocks(self, blocks, layers=None):
        return bytes(len(blocks) * len(self.layers if layers is None else layers) * self.block_bytes)

    def write_blocks(self, blocks, data, layers=None):
        assert len(data) == len(self.read_blocks(blocks, layers))


class Layered(SimulatedExecutor):
    """Computes the layers of a step one after another, each in the same time."""

    def __init__(self, clock, cost, cache):
        super().__init__(clock, cost)
        self.cache = cache

    def execute(self, batch):
        began, watch = self.clock.now(), self.cache.watch
        results = super().execute(batch)
        if watch is None:
            return results
        ended, self.clock._now = self.clock.now(), began
        for layer in range(LAYERS):
            self.clock.sleep_until(began + (layer + 1) / LAYERS * (ended - began))
            watch(layer)
        self.clock.sleep_until(ended)
        return results


def new_side(clock):
    cache = Cache()
    return Engine(Layered(clock, cost, cache), BlockManager(BLOCKS, BLOCK), CHUNKED, clock), cache


TRACES = {
    "skewed": trace(poisson(40.0, 32), 60, lognormal(100, 0.7, 16, 400), uniform(2, 48), seed=32),
    "long prompts": trace(poisson(25.0, 33), 60, lognormal(300, 0.5, 32, 900), uniform(2, 24), seed=33),
}


@pytest.mark.parametrize("case", TRACES)
@pytest.mark.parametrize("handover", ["whole", "chunks", "layers"])
def test_every_token_comes_when_the_simulation_says(case, handover):
    simulation = pytest.importorskip("threeloops.product.disaggregated.simulation")
    from threeloops.product.disaggregated.description import Deployment, Pool
    from threeloops.product.disaggregated.transfer import CacheShape, Handover

    real = replay_two_sides(TRACES[case], new_side, LINK, handover, new_clock=Clock)
    pool = Pool(1, CHUNKED, BLOCKS)
    way = Handover(LINK, CacheShape(LAYERS, TOKEN_BYTES), handover)
    run = simulation.simulate(TRACES[case], Deployment(cost, way, pool, pool, block_size=BLOCK))
    assert len(real.requests) == len(run.requests) == 60
    blocks = sum(-(-len(request.prompt) // BLOCK) for request in real.requests)
    assert real.sent_bytes == blocks * BLOCK * LAYERS * TOKEN_BYTES
    for ours, theirs in zip(real.requests, run.requests, strict=True):
        assert len(ours.token_times) == len(theirs.token_times) == ours.sampling.max_tokens
        assert ours.token_times[0] == pytest.approx(theirs.token_times[0], abs=1e-9)
        assert ours.token_times == pytest.approx(theirs.token_times, abs=DECODE_STEP)
