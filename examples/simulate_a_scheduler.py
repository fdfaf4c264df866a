"""Compare schedulers for Llama 3 8B on an H100, without one: the engine's own scheduler runs in virtual time."""

from dataclasses import replace

from threeloops.hardware import accelerator
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import POLICIES, BlockManager, Engine, RooflineCost, SimulatedExecutor
from threeloops.product.loadgen import SLO, lognormal, measure, poisson, replay, trace, uniform
from threeloops.simulation.clock import VirtualClock

LLAMA_8B = GPTConfig(128_256, 32, 32, 8, 4096, 14_336, 8192, tied_embeddings=False)
COST = RooflineCost(LLAMA_8B, accelerator("H100"), reached=0.7, overhead=2e-3)
ARRIVALS = trace(poisson(8), 300, lognormal(400, 0.8, 16, 2000), uniform(50, 200), seed=1)

print("policy      tokens/s   P99 to first token   P99 between tokens   within the SLO")
for name, policy in POLICIES.items():
    clock = VirtualClock()
    executor = SimulatedExecutor(clock, COST)
    engine = Engine(executor, BlockManager(16_384, 16), replace(policy, max_running=32), clock)
    done = measure(replay(engine, ARRIVALS).requests, SLO(ttft=0.5, tpot=0.03))
    print(
        f"{name:10} {done.throughput:9.0f} {done.ttft.p99:18.2f} s {done.itl.p99 * 1e3:17.1f} ms {done.goodput:12.1f}/s"
    )
