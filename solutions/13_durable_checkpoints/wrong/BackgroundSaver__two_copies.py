# expect: save 2 had copied before write 1 was done, so there were two copies
# fails: order
class BackgroundSaver:
    """Saves a copy of a state while training goes on."""

    def __init__(self, write):
        """`write(step, state)` writes a state, and takes long."""
        self.write = write
        self.copy, self.thread, self.error = {}, None, None

    def save(self, step: int, state: dict[str, torch.Tensor]) -> None:
        """Copy, and write the copy in the background."""
        early = {name: tensor.clone() for name, tensor in state.items()}
        self.wait()
        for name, tensor in early.items():
            self.copy.setdefault(name, torch.empty_like(tensor)).copy_(tensor)
        self.thread = threading.Thread(target=self._run, args=(step,))
        self.thread.start()

    def wait(self) -> None:
        """Until everything is written."""
        if self.thread is not None:
            self.thread.join()
        error, self.thread, self.error = self.error, None, None
        if error is not None:
            raise error

    def _run(self, step):
        try:
            self.write(step, self.copy)
        except Exception as error:
            self.error = error
