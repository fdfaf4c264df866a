class BackgroundSaver:
    """The lock is held while the buffer is in use; all tensors lie in one buffer of bytes."""

    def __init__(self, write):
        self.write, self.in_use, self.errors, self.views = write, threading.Lock(), [], None

    def save(self, step: int, state: dict[str, torch.Tensor]) -> None:
        """Copy into the buffer."""
        self.wait()
        if self.views is None:
            sizes = {name: -(-tensor.nbytes // 64) * 64 for name, tensor in state.items()}
            buffer, at, self.views = torch.empty(sum(sizes.values()), dtype=torch.uint8), 0, {}
            for name, tensor in state.items():
                self.views[name] = buffer[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                at += sizes[name]
        for name, tensor in state.items():
            self.views[name].copy_(tensor)
        self.in_use.acquire()
        threading.Thread(target=self._work, args=(step,)).start()

    def wait(self) -> None:
        """Nobody holds the lock."""
        with self.in_use:
            pass
        if self.errors:
            raise self.errors.pop()

    def _work(self, step):
        try:
            self.write(step, self.views)
        except Exception as error:
            self.errors.append(error)
        finally:
            self.in_use.release()
