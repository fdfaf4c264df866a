# expect: the source must go on while the reader is busy
# fails: ahead
async def stream(tokens, ahead: int, heartbeat: float):
    async def step():
        return await anext(tokens)

    pending = None
    try:
        while True:
            pending = pending or asyncio.create_task(step())
            await asyncio.wait([pending], timeout=heartbeat)
            if not pending.done():
                yield KEEP_ALIVE
                continue
            try:
                text = event(pending.result())
            except StopAsyncIteration:
                break
            except Exception as error:
                pending = None
                yield event({"error": str(error)})
                return
            pending = None
            yield text
        yield DONE
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.wait([pending])
        await tokens.aclose()
