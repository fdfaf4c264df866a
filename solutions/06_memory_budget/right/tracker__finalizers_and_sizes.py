class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.sizes, self.peak, self.made = {}, 0, 0

    def note(self, tree, size_of):
        for leaf in tree_leaves(tree):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in self.sizes:
                storage = leaf.untyped_storage()
                self.sizes[storage._cdata] = size_of(storage)
                self.made += size_of(storage) is not None
                weakref.finalize(storage, self.sizes.pop, storage._cdata)
        self.peak = max(self.peak, self.live())

    def live(self):
        return sum(size or 0 for size in self.sizes.values())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.note((args, kwargs), lambda storage: None)
        result = function(*args, **(kwargs or {}))
        self.note(result, lambda storage: storage.nbytes())
        return result


def live_bytes(run):
    with Watch() as watch:
        run()
    return Live(watch.peak, watch.live(), watch.made)
