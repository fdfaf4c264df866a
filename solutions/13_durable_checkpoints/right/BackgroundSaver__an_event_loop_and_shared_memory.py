import asyncio


class BackgroundSaver:
    """A thread runs an event loop; the copy lies in shared memory, and each write gets a new dictionary of it."""

    def __init__(self, write):
        self.write, self.copy, self.future = write, None, None
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def save(self, step: int, state: dict[str, torch.Tensor]) -> None:
        """Copy, and hand the write to the loop."""
        self.wait()
        if self.copy is None:
            self.copy = {name: torch.empty_like(tensor).share_memory_() for name, tensor in state.items()}
        for name, tensor in state.items():
            self.copy[name].copy_(tensor)
        self.future = asyncio.run_coroutine_threadsafe(self._run(step), self.loop)

    def wait(self) -> None:
        """The result of the last write."""
        future, self.future = self.future, None
        try:
            if future is not None:
                future.result()
        except OSError as error:
            raise RuntimeError(f"the last save failed: {error}") from error

    async def _run(self, step):
        self.write(step, dict(self.copy))
