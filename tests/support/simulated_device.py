"""A GPU's order of things without a GPU: streams whose work is done late, in any order that streams and events allow.

Code that forgets to wait is right most of the time on a real device, where a copy of some bytes is over before anyone
looks. Here a seed decides at each call of the host which streams get on and how far, so that over some seeds every race
is lost. Work on tensors is kept for later if a tensor of the device takes part in it in place; tensors are the device's
unless they are pinned or given to `host`. What is not modelled: memory that is freed while work on it is queued.
"""

import contextlib
import random
from collections import deque
from collections.abc import Callable

import torch
from torch.overrides import TorchFunctionMode


class SimulatedDevice(TorchFunctionMode):
    """Use as a context, with `install` before it: `torch.cuda`'s streams and events are then this device's."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random, self.streams, self.hosted = random.Random(seed), list[Stream](), list[torch.Tensor]()
        self.laziness = self.random.choice([0.1, 0.5, 0.9])  # some devices lag far behind their host
        self.current = Stream(self)

    def install(self, monkeypatch) -> None:
        monkeypatch.setattr(torch.cuda, "Stream", lambda *_: Stream(self))
        monkeypatch.setattr(torch.cuda, "Event", lambda *_: Event(self))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.on)

    @contextlib.contextmanager
    def on(self, stream: "Stream"):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def host(self, *tensors: torch.Tensor) -> None:
        """These lie in host memory."""
        self.hosted += tensors

    def launch(self, kernel: Callable[[], object]) -> None:
        """Queue work of the test's own on the current stream."""
        self.current.queue.append(kernel)
        self.get_on()

    def get_on(self) -> None:
        """Time passes: some queued work is done, or none."""
        while self.random.random() > self.laziness and self._one():
            pass

    def until(self, done: Callable[[], bool]) -> None:
        """The host waits."""
        while not done():
            if not self._one():
                raise RuntimeError("deadlock: every stream waits for an event that nothing will record")

    def synchronize(self) -> None:
        self.until(lambda: not any(stream.queue for stream in self.streams))

    def _one(self) -> bool:
        ready = [stream for stream in self.streams if stream.queue and stream.ready()]
        if not ready:
            return False
        work = self.random.choice(ready).queue.popleft()
        if not isinstance(work, _Wait):
            with torch._C.DisableTorchFunction(), torch.no_grad():
                work()
        return True

    def _is_host(self, tensor: torch.Tensor) -> bool:
        at = tensor.untyped_storage().data_ptr()
        return any(each.untyped_storage().data_ptr() == at for each in self.hosted)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.empty, torch.zeros):
            pinned = kwargs.pop("pin_memory", False)
            made = func(*args, **kwargs | {"device": "cpu"})
            if pinned:
                self.hosted.append(made)
            return made
        name = func.__name__
        in_place = (name.endswith("_") and not name.startswith("__")) or "out" in kwargs
        tensors = [each for each in (*args, kwargs.get("out")) if isinstance(each, torch.Tensor)]
        if not in_place or all(map(self._is_host, tensors)):
            return func(*args, **kwargs)
        self.current.queue.append(lambda: func(*args, **kwargs))
        if any(map(self._is_host, tensors)) and not kwargs.get("non_blocking"):
            self.current.synchronize()
        self.get_on()
        return tensors[0] if "out" not in kwargs else kwargs["out"]


class _Wait:
    def __init__(self, event: "Event") -> None:
        self.event, self.version = event, event.recorded

    def over(self) -> bool:
        return self.event.done >= self.version


class Stream:
    def __init__(self, device: SimulatedDevice) -> None:
        self.machine, self.queue = device, deque()
        device.streams.append(self)

    def ready(self) -> bool:
        return not isinstance(self.queue[0], _Wait) or self.queue[0].over()

    def wait_event(self, event: "Event") -> None:
        self.queue.append(_Wait(event))
        self.machine.get_on()

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(other.record_event())

    def record_event(self) -> "Event":
        event = Event(self.machine)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.machine.until(lambda: not self.queue)


class Event:
    """As CUDA's: to wait for it is to wait for its latest record by then; one never recorded holds nobody up."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.machine, self.recorded, self.done = device, 0, 0

    def record(self, stream: Stream) -> None:
        self.recorded += 1
        stream.queue.append(lambda version=self.recorded: setattr(self, "done", max(self.done, version)))
        self.machine.get_on()

    def synchronize(self) -> None:
        version = self.recorded
        self.machine.until(lambda: self.done >= version)
