# expect: out of memory
# fails: drain
class Lifecycle:
    def __init__(self):
        self.loaded = self.engine_dead = self.draining = False
        self.running: dict[str, asyncio.Task] = {}

    def status(self, path: str) -> int:
        healthy = {
            "/startup": self.loaded,
            "/live": not self.engine_dead,
            "/ready": self.loaded and not self.engine_dead and not self.draining,
        }
        if path not in healthy:
            return 404
        return 200 if healthy[path] else 503

    async def drain(self, limit: float) -> dict[str, str]:
        self.draining = True
        tasks, reason = dict(self.running), f"cut off after {limit:g} s"
        asyncio.get_running_loop().call_later(limit, lambda: [task.cancel(reason) for task in tasks.values()])
        found = {}
        for name, task in tasks.items():
            try:
                await task
                found[name] = "finished"
            except asyncio.CancelledError:
                found[name] = reason
        return found
