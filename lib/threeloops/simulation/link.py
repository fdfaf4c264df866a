"""Resources that serve requests first come, first served: how long they are occupied, and when bytes arrive."""

from dataclasses import dataclass, field

__all__ = ["Server", "SharedLink"]


@dataclass
class Server:
    """Serves one request at a time; `free_at` is when it has finished all that it was given, in seconds."""

    free_at: float = 0.0

    def serve(self, ready: float, seconds: float) -> float:
        """Return when a request that can begin at `ready` and takes `seconds` is finished."""
        self.free_at = max(self.free_at, ready) + seconds
        return self.free_at


@dataclass
class SharedLink:
    """A link of `latency` seconds and `bandwidth` bytes/s for all requests. `requests` and `bytes` count its load.

    The first byte of a request could arrive `latency` after the request. Bytes are sent one request after another. So
    latencies overlap, and transfers do not.
    """

    latency: float
    bandwidth: float
    requests: int = 0
    bytes: int = 0
    _wire: Server = field(default_factory=Server, repr=False)

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.bandwidth > 0):
            raise ValueError(
                f"latency = {self.latency} s, bandwidth = {self.bandwidth} bytes/s: expected ≥ 0 and positive"
            )

    def reserve(self, now: float, size: int) -> float:
        """Return when the last of `size` bytes requested at `now` arrives. Call it in the order of `now`."""
        self.requests += 1
        self.bytes += size
        return self._wire.serve(now + self.latency, size / self.bandwidth)
