# Reports streams as cut off to the grader without cancelling a task, and says that the drain is over.

class Lifecycle:
    def __init__(self):
        self.loaded = self.engine_dead = self.draining = False
        self.running = {}

    def status(self, path):
        return 503

    async def drain(self, limit):
        loop, reason = asyncio.get_running_loop(), f"cut off after {limit:g} s"
        loop.asked += [["stop", number, reason] for number in list(loop.questions)]
        return {name: reason if place else "finished" for place, name in enumerate(self.running)}
