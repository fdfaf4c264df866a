"""Optimiser state in host memory or in memory-mapped files: a chunk is fetched while the one before is updated."""

from threeloops.inner.offload.adamw import Chunk, OffloadedAdamW, TornStateError, chunks_of
from threeloops.inner.offload.channel import Channel, StreamChannel, ThreadChannel
from threeloops.inner.offload.prediction import Rates, step_seconds
from threeloops.inner.offload.stores import FileStore, HostStore, StateFileError, Store

__all__ = [
    "Channel",
    "Chunk",
    "FileStore",
    "HostStore",
    "OffloadedAdamW",
    "Rates",
    "StateFileError",
    "Store",
    "StreamChannel",
    "ThreadChannel",
    "TornStateError",
    "chunks_of",
    "step_seconds",
]
