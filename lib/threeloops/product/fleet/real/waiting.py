"""Bounded waiting for processes of this machine. A failed wait says why."""

import socket
import time
from collections.abc import Callable

__all__ = ["free_port", "wait_until"]


def wait_until(done: Callable[[], bool], seconds: float, why: Callable[[], str]) -> float:
    """Seconds until `done()`. Raises TimeoutError with `why()` if that takes longer than `seconds`."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{why()} (waited for {seconds:g} s)")
        time.sleep(0.02)
    return time.monotonic() - began


def free_port() -> int:
    """A port of this machine on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
