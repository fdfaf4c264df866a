# expect: batches, max_batch 4
# fails: answers, load, leaves
class Server:
    """The loop is free, but the await stands inside the lock: one request at a time."""

    def __init__(self, model, max_batch: int, max_delay: float):
        self.model, self.max_delay = model, max_delay
        self.lock, self.seconds = asyncio.Lock(), []

    async def handle(self, prompt: str) -> str:
        began = now()
        async with self.lock:
            await asyncio.sleep(self.max_delay)
            answers = await asyncio.to_thread(self.model, [prompt])
        self.seconds.append(now() - began)
        return answers[0]

    def report(self) -> float:
        return float(np.percentile(self.seconds, 95))
