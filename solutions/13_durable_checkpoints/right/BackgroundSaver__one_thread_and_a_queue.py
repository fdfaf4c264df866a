import queue


class BackgroundSaver:
    """One thread for all saves."""

    def __init__(self, write):
        self._todo, self._error, self._copy = queue.Queue(), None, None

        def work():
            while True:
                step = self._todo.get()
                try:
                    write(step, self._copy)
                except Exception as error:
                    self._error = error
                self._todo.task_done()

        threading.Thread(target=work, daemon=True).start()

    def save(self, step: int, state: dict[str, torch.Tensor]) -> None:
        """Copy, and tell the thread."""
        self.wait()
        if self._copy is None:
            self._copy = {name: tensor.detach().clone() for name, tensor in state.items()}
        else:
            for name in self._copy:
                self._copy[name].copy_(state[name])
        self._todo.put(step)

    def wait(self) -> None:
        """Until the thread has nothing to do."""
        self._todo.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise RuntimeError(f"a save failed: {error}") from error
