class Lifecycle:
    def __init__(self):
        self.loaded = self.engine_dead = self.draining = False
        self.running: dict[str, asyncio.Task] = {}

    def status(self, path: str) -> int:
        if path == "/live":
            good = not self.engine_dead
        elif path == "/startup":
            good = self.loaded
        elif path == "/ready":
            good = self.status("/startup") == self.status("/live") == 200 and not self.draining
        else:
            return 404
        return (503, 200)[good]

    async def drain(self, limit: float) -> dict[str, str]:
        self.draining, found = True, {}

        async def watch(name, task):
            try:
                await asyncio.wait_for(asyncio.shield(task), limit)
                found[name] = "finished"
            except TimeoutError:
                found[name] = f"cut off after {limit:g} s"
                task.cancel(found[name])
                await asyncio.wait({task})
            except Exception as error:
                found[name] = f"failed: {error}"

        async with asyncio.TaskGroup() as group:
            for each in list(self.running.items()):
                group.create_task(watch(*each))
        return found
