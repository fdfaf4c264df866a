# expect: as if nothing had happened
# fails: leaves
async def stream(tokens, ahead: int, heartbeat: float):
    queue = asyncio.Queue(ahead)

    async def pump():
        try:
            async for token in tokens:
                await queue.put((event(token), False))
            last = DONE
        except Exception as error:
            last = event({"error": str(error)})
        finally:
            await tokens.aclose()
        await queue.put((last, True))

    task = asyncio.create_task(pump())
    try:
        while True:
            try:
                async with asyncio.timeout(heartbeat):
                    text, end = await queue.get()
            except TimeoutError:
                yield KEEP_ALIVE
                continue
            yield text
            if end:
                return
    except asyncio.CancelledError:
        pass
    finally:
        task.cancel()
        await asyncio.wait([task])
