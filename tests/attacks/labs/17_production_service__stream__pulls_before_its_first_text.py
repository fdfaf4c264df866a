# Takes as many tokens as may wait before its first text, and none while the reader is busy.


async def stream(tokens, ahead, heartbeat):
    async for _ in tokens:
        ahead -= 1
        if ahead < 0:
            break
    yield KEEP_ALIVE
