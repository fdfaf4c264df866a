class _Ahead:
    """Reads a source in a task of its own; at most `ahead` tokens wait."""

    def __init__(self, tokens, ahead):
        self.tokens, self.items, self.room = tokens, [], asyncio.Event()
        self.ahead, self.news = ahead, asyncio.Event()
        self.task = asyncio.create_task(self.read())

    async def read(self):
        try:
            while True:
                while len(self.items) >= self.ahead:
                    self.room.clear()
                    await self.room.wait()
                self.add(event(await anext(self.tokens)))
        except StopAsyncIteration:
            self.add(DONE, None)
        except Exception as error:
            self.add(event({"error": str(error)}), None)

    def add(self, *texts):
        self.items.extend(texts)
        self.news.set()

    async def take(self, seconds):
        if not self.items:
            self.news.clear()
            try:
                await asyncio.wait_for(self.news.wait(), seconds)
            except TimeoutError:
                return KEEP_ALIVE
        self.room.set()
        return self.items.pop(0)

    async def close(self):
        self.task.cancel()
        await asyncio.wait({self.task})
        await self.tokens.aclose()


async def stream(tokens, ahead: int, heartbeat: float):
    source = _Ahead(tokens, ahead)
    try:
        while (text := await source.take(heartbeat)) is not None:
            yield text
    finally:
        await source.close()
