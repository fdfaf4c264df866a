# expect: set `draining`, always
# fails: drain
class Lifecycle:
    def __init__(self):
        self.loaded = self.engine_dead = self.draining = False
        self.running: dict[str, asyncio.Task] = {}

    def status(self, path: str) -> int:
        if path == "/startup":
            ok = self.loaded
        elif path == "/live":
            ok = not self.engine_dead
        elif path == "/ready":
            ok = self.loaded and not self.engine_dead and not self.draining
        else:
            return 404
        return 200 if ok else 503

    async def drain(self, limit: float) -> dict[str, str]:
        running = dict(self.running)
        if not running:
            return {}
        self.draining = True
        reason = f"cut off after {limit:g} s"
        done, late = await asyncio.wait(running.values(), timeout=limit)
        for t in late:
            t.cancel(reason)
        if late:
            await asyncio.wait(late)
        result = {}
        for name, t in running.items():
            if t in late or t.cancelled():
                result[name] = reason
            elif t.exception() is not None:
                result[name] = f"failed: {t.exception()}"
            else:
                result[name] = "finished"
        return result
