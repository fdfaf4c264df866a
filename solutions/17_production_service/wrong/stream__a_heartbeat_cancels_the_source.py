# expect: the source must go on while the reader is busy
# fails: ahead, silence
async def stream(tokens, ahead: int, heartbeat: float):
    try:
        while True:
            try:
                token = await asyncio.wait_for(anext(tokens), heartbeat)
            except TimeoutError:
                yield KEEP_ALIVE
                continue
            except StopAsyncIteration:
                break
            except Exception as error:
                yield event({"error": str(error)})
                return
            yield event(token)
        yield DONE
    finally:
        await tokens.aclose()
