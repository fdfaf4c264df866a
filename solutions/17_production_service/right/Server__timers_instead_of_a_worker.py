class Server:
    """No worker: an arrival, a timer or the end of a batch starts the next one."""

    def __init__(self, model, max_batch: int, max_delay: float):
        self.model, self.max_batch, self.max_delay = model, max_batch, max_delay
        self.waiting, self.latencies, self.batch = {}, [], None
        self.loop = asyncio.get_running_loop()

    async def handle(self, prompt: str) -> str:
        arrived, mine = now(), object()
        future = self.loop.create_future()
        self.waiting[mine] = (arrived, prompt, future)
        self.loop.call_at(arrived + self.max_delay, self.start)
        self.loop.call_soon(self.start)
        try:
            answer = await future
        finally:
            self.waiting.pop(mine, None)
        self.latencies.append(now() - arrived)
        return answer

    def start(self, *_):
        if self.batch is not None and not self.batch.done():
            return
        if not self.waiting:
            return
        first = next(iter(self.waiting.values()))[0]
        if len(self.waiting) < self.max_batch and now() < first + self.max_delay - 1e-9:
            return
        chosen = [self.waiting.pop(each) for each in list(self.waiting)[: self.max_batch]]
        self.batch = asyncio.ensure_future(self.compute(chosen))
        self.batch.add_done_callback(self.start)

    async def compute(self, chosen):
        try:
            answers = await self.loop.run_in_executor(None, self.model, [prompt for _, prompt, _ in chosen])
        except Exception as error:
            for _, _, future in chosen:
                if not future.cancelled():
                    future.set_exception(error)
            return
        for (_, _, future), answer in zip(chosen, answers, strict=True):
            if not future.cancelled():
                future.set_result(answer)

    def report(self) -> float:
        return float(np.quantile(self.latencies, 0.95))
