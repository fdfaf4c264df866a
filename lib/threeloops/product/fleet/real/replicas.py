"""Replicas as processes of this machine, under the same kubelet as in the simulation.

A `Container` is a process with its own port and probes. Its `Kubelet` is asked at the same moments and makes the same
decisions as in the simulation. But the probes' answers come over HTTP, and decisions start or kill the real process.
`scrape` reads an autoscaler's metrics from /metrics.
"""

import http.client
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from threeloops.product.fleet.policies import Kubelet, ProbeEvent, Probes
from threeloops.product.fleet.real.waiting import free_port

__all__ = ["Command", "Container", "scrape", "serve_command"]

Command = Callable[[int], Sequence[str]]
"""The command that serves on a port."""

_QUEUE = ("vllm:num_requests_running", "vllm:num_requests_waiting")
"""Metrics whose sum is the number of a replica's outstanding requests."""


def serve_command(model: str = "tiny", config: Path | None = None) -> Command:
    """The course's own service with a model of `threeloops.product.trained` or a folder, and settings from a file."""
    more = ["--config", str(config)] if config else []
    return lambda port: [
        sys.executable,
        "-m",
        "threeloops.product.service",
        "--port",
        str(port),
        "--model",
        model,
        *more,
    ]


class Container:
    """One replica. `tick` does everything that is due. Its log is in `folder`."""

    def __init__(self, name: str, command: Command, folder: Path, probes: Probes, now: float) -> None:
        self.name = name
        self.port = free_port()
        self.log = folder / f"{name}.log"
        self.kubelet = Kubelet(probes, self._respond, now)
        self.events: list[ProbeEvent] = []
        self.draining = False
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def ready(self) -> bool:
        return self.kubelet.ready and not self.draining

    @property
    def pid(self) -> int | None:
        """The id of its process, if it is running."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def tick(self, now: float) -> list[ProbeEvent]:
        """Let the kubelet do everything that is due at `now` (seconds of `time.monotonic`), and return the changes."""
        events: list[ProbeEvent] = []
        if self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            self._process = None
            if not self.draining:
                events += self.kubelet.exited(now, f"exit code {code}" if code >= 0 else f"signal {-code}")
        if not self.draining and self.kubelet.next <= now:
            events += self.kubelet.tick(now)
        for event in events:
            if event.what == "killed":
                self.kill()
            elif event.what == "runs":
                self._start()
        self.events += events
        return events

    def drain(self) -> None:
        """Send SIGTERM: finish the current requests, and end. The router must stop sending requests before."""
        self.draining = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL, as when memory runs out or a node is lost."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def end(self, seconds: float = 10.0) -> None:
        """Wait until the process is gone; kill it if it does not go by itself."""
        if self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _start(self) -> None:
        self.kill()
        self.end()
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                list(self._command(self.port)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(os.environ)
            )

    def _respond(self, path: str, age: float) -> float:
        probes = self.kubelet.probes
        asked = (probes.readiness, probes.liveness) if self.kubelet.started else (probes.startup,)
        timeout = max(probe.timeout for probe in asked if probe is not None and probe.path == path)
        began = time.monotonic()
        status, _ = _get(self.port, path, timeout)
        return time.monotonic() - began if status == 200 else math.inf


def scrape(port: int, names: Sequence[str] = _QUEUE, seconds: float = 2.0) -> float | None:
    """The sum of all samples of these metrics of a replica; None if it does not answer, or has none of them."""
    status, text = _get(port, "/metrics", seconds)
    if status != 200:
        return None
    values = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in names
    ]
    return sum(values) if values else None


def _get(port: int, path: str, seconds: float) -> tuple[int, str]:
    """Status and text; 0 if there was no answer in time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()
