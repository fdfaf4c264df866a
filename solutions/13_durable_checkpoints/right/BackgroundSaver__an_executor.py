from concurrent.futures import ThreadPoolExecutor


class BackgroundSaver:
    """A future keeps the error."""

    def __init__(self, write):
        self.write, self.pool, self.future, self.staged = write, ThreadPoolExecutor(1), None, {}

    def save(self, step: int, state: dict[str, torch.Tensor]) -> None:
        """Copy, and submit."""
        self.wait()
        for name, tensor in state.items():
            self.staged.setdefault(name, torch.zeros_like(tensor)).copy_(tensor)
        self.future = self.pool.submit(self.write, step, self.staged)

    def wait(self) -> None:
        """The result, or what was raised."""
        future, self.future = self.future, None
        if future is not None:
            future.result()
