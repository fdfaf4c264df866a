"""Count the bytes of tensors that are alive in this process, independently of the code that holds them.

`threeloops.inner.memory.LiveStorage` also names the purpose of each storage. It notices a change of size when an
operator touches the storage. FSDP frees parameters without an operator, so this module reads all sizes again after each
operator.
"""

import weakref
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LiveBytes"]


class LiveBytes(TorchDispatchMode):
    """A context that counts live bytes: `with LiveBytes() as live: …`, then `live.peak`, and `live.now()` inside or
    after.

    It counts each storage that an operator reads or makes while it is open, once, however many tensors share it.
    `reset()` begins a new peak. Memory that collectives hold outside of torch's tensors is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._storages: dict[int, weakref.ref[UntypedStorage]] = {}

    def now(self) -> int:
        alive = [reference() for reference in list(self._storages.values())]
        return sum(storage.nbytes() for storage in alive if storage is not None)

    def reset(self) -> None:
        self.peak = self.now()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                storage = leaf.untyped_storage()
                key = storage._cdata
                if key not in self._storages or self._storages[key]() is not storage:
                    self._storages[key] = weakref.ref(storage)
        self.peak = max(self.peak, self.now())
        return result
