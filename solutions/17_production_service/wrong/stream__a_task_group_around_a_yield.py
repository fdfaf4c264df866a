# expect: what aclose() raised
# fails: leaves
async def stream(tokens, ahead: int, heartbeat: float):
    texts, changed = deque(), asyncio.Condition()
    ended = False

    async def fill():
        nonlocal ended
        try:
            try:
                async for token in tokens:
                    async with changed:
                        await changed.wait_for(lambda: len(texts) < ahead)
                        texts.append(event(token))
                        changed.notify_all()
                final = DONE
            except Exception as error:
                final = event({"error": str(error)})
            async with changed:
                texts.append(final)
                ended = True
                changed.notify_all()
        finally:
            await tokens.aclose()

    async with asyncio.TaskGroup() as group:
        filling = group.create_task(fill())
        try:
            while texts or not ended:
                async with changed:
                    try:
                        await asyncio.wait_for(changed.wait_for(lambda: bool(texts)), heartbeat)
                        text = texts.popleft()
                        changed.notify_all()
                    except TimeoutError:
                        text = KEEP_ALIVE
                yield text
        finally:
            filling.cancel()
