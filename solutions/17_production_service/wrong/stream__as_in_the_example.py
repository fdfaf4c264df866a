# expect: EngineError: out of memory
# fails: events, ahead, leaves, silence
async def stream(tokens, ahead: int, heartbeat: float):
    async for token in tokens:
        yield event(token)
    yield DONE
