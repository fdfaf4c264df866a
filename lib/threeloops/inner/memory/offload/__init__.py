"""Optimiser state in host memory or memory-mapped files: each chunk is fetched while the previous one is updated."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.inner.memory.offload.adamw import Chunk, OffloadedAdamW, TornStateError, chunks_of
    from threeloops.inner.memory.offload.channel import Channel, StreamChannel, ThreadChannel
    from threeloops.inner.memory.offload.prediction import Rates, step_seconds
    from threeloops.inner.memory.offload.stores import FileStore, HostStore, StateFileError, Store
else:
    import_on_demand(__name__)

__all__ = [
    "Channel", "Chunk", "FileStore", "HostStore", "OffloadedAdamW", "Rates", "StateFileError", "Store",
    "StreamChannel", "ThreadChannel", "TornStateError", "chunks_of", "step_seconds",
]  # fmt: skip
