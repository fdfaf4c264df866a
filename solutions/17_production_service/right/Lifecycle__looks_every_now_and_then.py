class Lifecycle:
    def __init__(self):
        self.loaded = self.engine_dead = self.draining = False
        self.running: dict[str, asyncio.Task] = {}

    def status(self, path: str) -> int:
        wrong = {"/startup": [not self.loaded], "/live": [self.engine_dead]}
        wrong["/ready"] = [*wrong["/startup"], *wrong["/live"], self.draining]
        return 404 if path not in wrong else 503 if any(wrong[path]) else 200

    async def drain(self, limit: float) -> dict[str, str]:
        self.draining = True
        names = {task: name for name, task in self.running.items()}
        result, end, left = {}, now() + limit, set(names)
        while left:
            done, left = await asyncio.wait(left, timeout=max(0, end - now()), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                result[names[task]] = "finished" if task.exception() is None else f"failed: {task.exception()}"
            if not done:
                break
        for task in left:
            task.cancel(f"cut off after {limit:g} s")
        await asyncio.gather(*left, return_exceptions=True)
        return result | {names[task]: f"cut off after {limit:g} s" for task in left}
