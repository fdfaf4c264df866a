# expect: moments of the calls, max_batch 4
# fails: answers, load, leaves
class Server:
    """The loop is free, and no batch is made."""

    def __init__(self, model, max_batch: int, max_delay: float):
        self.model, self.seconds = model, []

    async def handle(self, prompt: str) -> str:
        began = now()
        answers = await asyncio.to_thread(self.model, [prompt])
        self.seconds.append(now() - began)
        return answers[0]

    def report(self) -> float:
        return float(np.percentile(self.seconds, 95))
