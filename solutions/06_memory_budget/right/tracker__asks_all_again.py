def live_bytes(run):
    known, counted, highest = [], [], [0]

    def alive():
        return {s._cdata for r in known if (s := r()) is not None}

    def live():
        return sum(size for r, size in counted if r() is not None)

    class Door(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            met = alive()
            for leaf in tree_leaves([args, kwargs]):
                if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in met:
                    known.append(weakref.ref(leaf.untyped_storage()))
                    met.add(leaf.untyped_storage()._cdata)
            out = function(*args, **kwargs)
            for leaf in tree_leaves(out):
                if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in met:
                    reference = weakref.ref(leaf.untyped_storage())
                    known.append(reference)
                    counted.append((reference, leaf.untyped_storage().nbytes()))
                    met.add(leaf.untyped_storage()._cdata)
            highest[0] = max(highest[0], live())
            return out

    with Door():
        run()
    return Live(highest[0], live(), len(counted))
