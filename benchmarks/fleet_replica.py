"""A replica whose device is a clock: the course's engine behind HTTP, with steps that take time and compute nothing.

    python -m benchmarks.fleet_replica PORT

A GPU leaves its host's cores alone, which a model on this machine's CPU does not. Here a step sleeps for as long as it
would take on the device, so everything else is real and measured: HTTP, NGINX, queues, batches, processes.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import uvicorn
from fastapi import FastAPI, Response
from threeloops.hardware import accelerator
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import CHUNKED, AsyncEngine, Engine, RooflineCost, StepShape
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.request import Batch, Request, Sampling

__all__ = ["BLOCKS", "COST", "POLICY"]

LLAMA_8B = GPTConfig(128_256, 32, 32, 8, 4096, 14_336, 8192, tied_embeddings=False)
COST = RooflineCost(LLAMA_8B, accelerator("L4"), reached=0.7, overhead=2e-3)
POLICY = replace(CHUNKED, max_running=8, token_budget=256, prefix_cache=False)
BLOCKS = 1024


class _Paced:
    """Sleeps for the cost of a step, less what was overslept before."""

    def __init__(self) -> None:
        self._ready = 0.0

    def check(self, request: Request) -> None:
        """Any tokens will do."""

    def execute(self, batch: Batch) -> list[Sequence[int]]:
        now = time.monotonic()
        begin = self._ready if now - self._ready < 5e-3 else now  # a device has its next step queued
        self._ready = begin + COST(StepShape.of(batch))
        time.sleep(max(0.0, self._ready - now))
        return [(-1,) if chunk.samples else () for chunk in batch.chunks]


def _app() -> FastAPI:
    engine = Engine(_Paced(), BlockManager(BLOCKS, 16), POLICY)
    front = AsyncEngine(engine)
    numbers = iter(range(1 << 60))

    @asynccontextmanager
    async def lifespan(_: FastAPI):
        async with front:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/health")
    @app.get("/ready")
    async def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.get("/metrics")
    async def metrics() -> Response:
        waiting, running = len(engine.scheduler.waiting), len(engine.scheduler.running)
        text = f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"
        return Response(text, media_type="text/plain")

    @app.post("/v1/completions")
    async def complete(body: dict[str, Any]) -> dict[str, Any]:
        request = Request(str(next(numbers)), (0,) * body["prompt_tokens"], Sampling(max_tokens=body["max_tokens"]))
        async with aclosing(front.generate(request)) as tokens:
            count = sum([1 async for _ in tokens])
        return {"usage": {"completion_tokens": count}}

    return app


if __name__ == "__main__":
    asyncio.run(uvicorn.Server(uvicorn.Config(_app(), port=int(sys.argv[1]), log_level="warning")).serve())
