# expect: an array of NumPy's has died
# fails: outside
def live_bytes(run) -> Live:
    """Peak and rest of the storages that operators make while `run()` runs."""
    watching = Watching()
    with watching:
        run()
    return Live(watching.peak, watching.live, watching.storages)


class Watching(TorchDispatchMode):
    """Counts every storage that an operator makes, until it dies."""

    def __init__(self):
        super().__init__()
        self.known, self.live, self.peak, self.storages = {}, 0, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for leaf in tree_leaves((args, kwargs or {})):
            if isinstance(leaf, Tensor):
                self.see(leaf.untyped_storage(), counts=False)
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.see(leaf.untyped_storage(), counts=True)
        return result

    def see(self, storage, counts):
        key = storage._cdata
        if key in self.known:
            return
        size = storage.nbytes() if counts else 0
        self.known[key] = weakref.ref(storage, lambda _: self.end(key, size)) if counts else None
        self.live += size
        self.storages += counts
        self.peak = max(self.peak, self.live)

    def end(self, key, size):
        self.live -= size
        del self.known[key]
