class Server:
    def __init__(self, model, max_batch: int, max_delay: float):
        self.model, self.most, self.delay, self.times = model, max_batch, max_delay, []
        self.queue = asyncio.Queue()
        self.task = asyncio.get_running_loop().create_task(self.serve())

    async def handle(self, prompt: str) -> str:
        began, answer = now(), asyncio.Future()
        self.queue.put_nowait((began, prompt, answer))
        found = await answer
        self.times.append(now() - began)
        return found

    async def serve(self):
        batch = []
        while True:
            while not batch:
                batch = [await self.queue.get()]
                batch = [each for each in batch if not each[2].done()]
            while len(batch) < self.most:
                try:
                    left = batch[0][0] + self.delay - now()
                    if left <= 1e-9:
                        batch.append(self.queue.get_nowait())
                    else:
                        async with asyncio.timeout(left):
                            batch.append(await self.queue.get())
                except (asyncio.QueueEmpty, TimeoutError):
                    if batch[0][0] + self.delay - now() <= 1e-9:
                        break
                batch = [each for each in batch if not each[2].done()]
                if not batch:
                    break
            batch = [each for each in batch if not each[2].done()]
            if batch:
                try:
                    answers = await asyncio.to_thread(self.model, [prompt for _, prompt, _ in batch])
                    for (_, _, future), answer in zip(batch, answers, strict=True):
                        future.done() or future.set_result(answer)
                except Exception as error:
                    for _, _, future in batch:
                        future.done() or future.set_exception(error)
                batch = []

    def report(self) -> float:
        return float(np.percentile(np.array(self.times), 95))
