# expect: has ended with EngineError: cannot answer
# fails: answers, leaves
class Server:
    """Dynamic batching in front of a model that blocks its caller."""

    def __init__(self, model, max_batch: int, max_delay: float):
        self.model, self.max_batch, self.max_delay = model, max_batch, max_delay
        self.waiting, self.changed, self.seconds = deque(), asyncio.Event(), []
        self.worker = asyncio.create_task(self.work())

    async def handle(self, prompt: str) -> str:
        """The model's answer."""
        request = (prompt, now(), asyncio.get_running_loop().create_future())
        self.waiting.append(request)
        self.changed.set()
        answer = await request[2]
        self.seconds.append(now() - request[1])
        return answer

    def take(self):
        """The next batch; none while it may still grow, or while nobody waits."""
        self.waiting = deque(request for request in self.waiting if not request[2].done())
        if not self.waiting:
            return [], None
        left = self.waiting[0][1] + self.max_delay - now()
        if len(self.waiting) < self.max_batch and left > 1e-9:
            return [], left
        return [self.waiting.popleft() for _ in range(min(self.max_batch, len(self.waiting)))], None

    async def work(self):
        while True:
            batch, left = self.take()
            if not batch:
                self.changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), left)
                continue
            answers = await asyncio.to_thread(self.model, [prompt for prompt, _, _ in batch])
            for (_, _, future), answer in zip(batch, answers, strict=True):
                if future.done():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def report(self) -> float:
        """The P95 of the answered requests, in seconds."""
        return float(np.percentile(self.seconds, 95))
