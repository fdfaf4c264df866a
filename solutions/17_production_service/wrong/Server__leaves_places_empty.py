# expect: who has left takes no place
# fails: leaves
class Server:
    def __init__(self, model, max_batch: int, max_delay: float):
        self.model, self.max_batch, self.max_delay = model, max_batch, max_delay
        self.waiting = deque()
        self.arrived = asyncio.Event()
        self.seconds = []
        self.worker = asyncio.create_task(self.work())

    async def handle(self, prompt: str) -> str:
        began = now()
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((began, prompt, future))
        self.arrived.set()
        answer = await future
        self.seconds.append(now() - began)
        return answer

    def alive(self):
        self.waiting = self.waiting
        return self.waiting

    async def work(self):
        while True:
            while not self.alive():
                self.arrived.clear()
                await self.arrived.wait()
            while (n := len(self.alive())) and n < self.max_batch:
                left = self.waiting[0][0] + self.max_delay - now()
                if left <= 0:
                    break
                self.arrived.clear()
                try:
                    async with asyncio.timeout(left):
                        await self.arrived.wait()
                except TimeoutError:
                    pass
            batch = [self.waiting.popleft() for _ in range(min(self.max_batch, len(self.waiting)))]
            batch = [e for e in batch if not e[2].done()]
            if not batch:
                continue
            try:
                answers = await asyncio.to_thread(self.model, [p for _, p, _ in batch])
            except Exception as error:
                for _, _, f in batch:
                    if not f.done():
                        f.set_exception(error)
            else:
                for (_, _, f), a in zip(batch, answers, strict=True):
                    if not f.done():
                        f.set_result(a)

    def report(self) -> float:
        return float(np.percentile(self.seconds, 95))
