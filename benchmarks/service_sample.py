"""python -m benchmarks.service_sample PORT FOLDER: two small servers to compare with.

FOLDER is a folder of weights, and then this is the sample service of claim svc-1, as such samples are written: an async
handler that computes on the event loop, a "batch" that is collected under a lock and so never has two requests, and an
average as the only measure of latency. It refuses nobody. With "floor" for FOLDER it is what uvicorn and FastAPI
need by themselves: the same path, the same events, and no model.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

__all__ = ["main"]

_EVENT = b'data: {"id":"cmpl-0","object":"text_completion","choices":[{"index":0,"text":"a"}]}\n\n'


def _sample(folder: str) -> FastAPI:
    import torch
    from threeloops.models.llama_folder import load_llama_folder
    from threeloops.product.decode import generate
    from threeloops.product.request import Sampling

    torch.set_num_threads(1)
    model = load_llama_folder(folder)
    app, lock, latencies = FastAPI(), asyncio.Lock(), []

    @app.post("/v1/completions")
    async def complete(request: Request) -> dict[str, object]:
        arrived = time.monotonic()
        body = await request.json()
        async with lock:
            batch = [body]  # whoever else comes waits for the lock
            await asyncio.sleep(0)
            prompts = [list(each["prompt"].encode()) for each in batch]
            outputs = generate(model, prompts, Sampling(max_tokens=body["max_tokens"]))
        latencies.append(time.monotonic() - arrived)
        return {"choices": [{"text": bytes(outputs[0]).decode(errors="replace")}]}

    @app.get("/metrics")
    async def metrics() -> dict[str, float]:
        return {"average_latency": sum(latencies) / max(1, len(latencies))}

    _add_ready(app)
    return app


def _floor() -> FastAPI:
    app = FastAPI()

    @app.post("/v1/completions")
    async def complete(request: Request) -> StreamingResponse:
        body = json.loads(await request.body())

        async def events() -> AsyncIterator[bytes]:
            for _ in range(body["max_tokens"]):
                yield _EVENT
                await asyncio.sleep(0)
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    _add_ready(app)
    return app


def _add_ready(app: FastAPI) -> None:
    @app.get("/ready")
    async def ready() -> dict[str, str]:
        return {"status": "ready"}


def main(port: str, folder: str) -> None:
    app = _floor() if folder == "floor" else _sample(folder)
    uvicorn.run(app, port=int(port), log_level="error", loop="asyncio", http="h11")


if __name__ == "__main__":
    main(*sys.argv[1:])
