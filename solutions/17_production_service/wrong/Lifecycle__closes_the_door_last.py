# expect: set `draining` before you wait
# fails: drain
class Lifecycle:
    """One process of the service: how it is, and its running streams by name."""

    def __init__(self):
        self.loaded = self.engine_dead = self.draining = False
        self.running: dict[str, asyncio.Task] = {}

    def status(self, path: str) -> int:
        """What a probe gets."""
        healthy = {
            "/startup": self.loaded,
            "/live": not self.engine_dead,
            "/ready": self.loaded and not self.engine_dead and not self.draining,
        }
        if path not in healthy:
            return 404
        return 200 if healthy[path] else 503

    async def drain(self, limit: float) -> dict[str, str]:
        """End all streams, and say what became of each."""
        tasks, reason = dict(self.running), f"cut off after {limit:g} s"
        if not tasks:
            return {}
        _, late = await asyncio.wait(tasks.values(), timeout=limit)
        for task in late:
            task.cancel(reason)
        if late:
            await asyncio.wait(late)
        self.draining, found = True, {}
        for name, task in tasks.items():
            if task.cancelled():
                found[name] = reason
            elif task.exception() is not None:
                found[name] = f"failed: {task.exception()}"
            else:
                found[name] = "finished"
        return found
