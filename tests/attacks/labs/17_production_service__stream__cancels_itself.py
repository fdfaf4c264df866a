# Ends by a cancellation that nobody asked for, before it has sent anything.


async def stream(tokens, ahead, heartbeat):
    await tokens.aclose()
    raise asyncio.CancelledError
    yield
