# expect: the source must pause
# fails: ahead, leaves, silence
async def stream(tokens, ahead: int, heartbeat: float):
    texts = []
    try:
        async for token in tokens:
            texts.append(event(token))
        texts.append(DONE)
    except Exception as error:
        texts.append(event({"error": str(error)}))
    finally:
        await tokens.aclose()
    for text in texts:
        yield text
