import contextlib
from concurrent.futures import ThreadPoolExecutor


class Server:
    def __init__(self, model, max_batch: int, max_delay: float):
        self.model, self.max_batch, self.max_delay = model, max_batch, max_delay
        self.line, self.changed, self.seconds = [], asyncio.Condition(), []
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.worker = asyncio.create_task(self.run())

    async def handle(self, prompt: str) -> str:
        entry = {"prompt": prompt, "at": now(), "answer": asyncio.get_running_loop().create_future()}
        try:
            async with self.changed:
                self.line.append(entry)
                self.changed.notify()
            answer = await entry["answer"]
        finally:
            if entry in self.line:
                self.line.remove(entry)
        self.seconds.append(now() - entry["at"])
        return answer

    async def run(self):
        while True:
            async with self.changed:
                await self.changed.wait_for(lambda: self.line)
                while self.line and len(self.line) < self.max_batch:
                    left = self.line[0]["at"] + self.max_delay - now()
                    if left <= 1e-9:
                        break
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.changed.wait(), left)
                batch, self.line = self.line[: self.max_batch], self.line[self.max_batch :]
            if not batch:
                continue
            loop, prompts = asyncio.get_running_loop(), [entry["prompt"] for entry in batch]
            try:
                answers = await loop.run_in_executor(self.thread, self.model, prompts)
            except Exception as error:
                for entry in batch:
                    if not entry["answer"].done():
                        entry["answer"].set_exception(error)
                continue
            for entry, answer in zip(batch, answers, strict=True):
                if not entry["answer"].done():
                    entry["answer"].set_result(answer)

    def report(self) -> float:
        return float(np.percentile(self.seconds, 95))
