# Lets time pass where it should wait, in a function that the grader offers for computation.

from threeloops.simulation import following


class Server:
    def __init__(self, model, max_batch, max_delay):
        self.model, self.delay, self.waiting = model, max_delay, []

    async def handle(self, prompt):
        asyncio.get_running_loop().call_grader(following.BUSY, self.delay)
        return (await asyncio.to_thread(self.model, [prompt]))[0]

    def report(self):
        return 0.0
