class Door(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.outside, self.made = weakref.WeakValueDictionary(), weakref.WeakValueDictionary()
        self.peak = self.count = 0

    def total(self):
        return sum(storage.nbytes() for storage in self.made.values())

    def storages(self, *trees):
        return [leaf.untyped_storage() for leaf in tree_leaves(trees) if isinstance(leaf, Tensor)]

    def new(self, storage):
        return storage._cdata not in self.outside and storage._cdata not in self.made

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for storage in self.storages(args, kwargs):
            if self.new(storage):
                self.outside[storage._cdata] = storage
        storage = None
        result = function(*args, **(kwargs or {}))
        for storage in self.storages(result):
            if self.new(storage):
                self.made[storage._cdata] = storage
                self.count += 1
        self.peak = max(self.peak, self.total())
        return result


def live_bytes(run):
    door = Door()
    with door:
        run()
    return Live(door.peak, door.total(), door.count)
