# expect: has ended with EngineError: out of memory
# fails: events, silence
async def stream(tokens, ahead: int, heartbeat: float):
    """Server-sent events of tokens, with a bounded buffer between the engine and the reader."""
    ready = asyncio.Queue(ahead)

    async def produce():
        try:
            async for token in tokens:
                await ready.put(event(token))
            last = DONE
        finally:
            await tokens.aclose()
        await ready.put(last)
        await ready.put(None)

    producing = asyncio.create_task(produce())
    try:
        while True:
            try:
                async with asyncio.timeout(heartbeat):
                    text = await ready.get()
            except TimeoutError:
                yield KEEP_ALIVE
                continue
            if text is None:
                return
            yield text
    finally:
        producing.cancel()
        await asyncio.wait([producing])
