# expect: moment at which it returns
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
        self.draining, found = True, {}
        for name, task in dict(self.running).items():
            done, _ = await asyncio.wait([task], timeout=limit)
            if not done:
                task.cancel(f"cut off after {limit:g} s")
                await asyncio.wait([task])
                found[name] = f"cut off after {limit:g} s"
            else:
                found[name] = f"failed: {task.exception()}" if task.exception() else "finished"
        return found
