class Lifecycle:
    def __init__(self):
        self.loaded = self.engine_dead = self.draining = False
        self.running: dict[str, asyncio.Task] = {}

    def status(self, path: str) -> int:
        match path:
            case "/startup":
                return 200 if self.loaded else 503
            case "/live":
                return 503 if self.engine_dead else 200
            case "/ready":
                return 503 if self.engine_dead or self.draining or not self.loaded else 200
        return 404

    async def drain(self, limit: float) -> dict[str, str]:
        self.draining = True
        names, tasks = list(self.running), list(self.running.values())
        reason = f"cut off after {limit:g} s"
        asyncio.get_running_loop().call_later(limit, lambda: [task.cancel(reason) for task in tasks if not task.done()])
        ends = await asyncio.gather(*tasks, return_exceptions=True)

        def words(end):
            if isinstance(end, asyncio.CancelledError):
                return reason
            return f"failed: {end}" if isinstance(end, Exception) else "finished"

        return {name: words(end) for name, end in zip(names, ends, strict=True)}
