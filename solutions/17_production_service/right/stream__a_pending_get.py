async def stream(tokens, ahead: int, heartbeat: float):
    queue, seats = asyncio.Queue(), asyncio.Semaphore(ahead)

    async def pump():
        try:
            async for token in tokens:
                await seats.acquire()
                queue.put_nowait((event(token), False))
            queue.put_nowait((DONE, True))
        except Exception as error:
            queue.put_nowait((event({"error": f"{error}"}), True))
        finally:
            await tokens.aclose()

    pumping, getting = asyncio.create_task(pump()), None
    try:
        last = False
        while not last:
            getting = getting or asyncio.create_task(queue.get())
            await asyncio.wait({getting}, timeout=heartbeat)
            if not getting.done():
                yield KEEP_ALIVE
                continue
            text, last = getting.result()
            getting = None
            seats.release()
            yield text
    finally:
        tasks = [task for task in (pumping, getting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
