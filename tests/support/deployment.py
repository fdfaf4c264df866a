"""What the tests of `product/deploy` share: its files, the programs that read them, and a service's metrics without a
service."""

import contextlib
import os
import re
import shutil
import subprocess
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from threeloops.product.fleet import Probe

FILES = Path(str(files("threeloops.product.deploy")))
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
REFUSALS = {"overloaded", "deadline_exceeded", "rate_limit_exceeded", "invalid_api_key"}
"""Codes of refusals that the files name or leave out on purpose."""


def start_seconds(startup: dict) -> float:
    """What a manifest's startup probe gives a container to start."""
    return Probe(period=startup["periodSeconds"], failure_threshold=startup["failureThreshold"]).patience


def program(name: str, package: str) -> str:
    """Where it is. Skips the test if it is not installed; THREELOOPS_CI turns the skip into a failure."""
    found = shutil.which(name, path=PATH)
    if found is None:
        pytest.skip(f"there is no {name} here: apt install {package}")
    return found


def of(name: str) -> dict:
    """A YAML file of one document."""
    return yaml.safe_load((FILES / name).read_text())


def settings() -> dict:
    return tomllib.loads((FILES / "kubernetes/base/serve.toml").read_text())


def service_registry(cache_use: float = 0.5, waiting: float = 1.0) -> CollectorRegistry:
    """Every metric that the files name, under the names and with the labels of the service, and a sample of each."""
    registry = CollectorRegistry()

    def add(kind, name, *labels, **more):
        metric = kind(name, "of the service", ["model_name", *labels], registry=registry, **more)
        return metric.labels("m", *("stop" for _ in labels))

    add(Gauge, "vllm:num_requests_running").set(3)
    add(Gauge, "vllm:num_requests_waiting").set(waiting)
    add(Gauge, "vllm:kv_cache_usage_perc").set(cache_use)
    add(Counter, "vllm:request_success", "finished_reason").inc(5)
    add(Counter, "vllm:prompt_tokens").inc(100)
    add(Counter, "vllm:generation_tokens").inc(100)
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "request_queue_time"):
        add(Histogram, f"vllm:{name}_seconds", buckets=(0.01, 0.1, 0.5, 1.0, 2.5)).observe(0.3)
    Counter("threeloops:requests_refused", "by code", ["code"], registry=registry).labels("overloaded").inc()
    return registry


@contextlib.contextmanager
def serving_metrics(registry: CollectorRegistry):
    """A server with /metrics on a free port, which it yields.

    It always answers in the text format: `start_http_server` of prometheus_client answers the OpenMetrics that
    Prometheus would rather have, and there a colon in a name becomes an underscore.
    """

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self):
            body = generate_latest(registry)
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE_LATEST)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def known_metrics() -> set[str]:
    """Names of all samples that a scrape of the service has, and `up`, which Prometheus adds."""
    return {sample.name for family in service_registry().collect() for sample in family.samples} | {"up"}


def metrics_of(expression: str) -> set[str]:
    """Names of the metrics in PromQL: words that are no function, label, duration or keyword."""
    rest = re.sub(r'"[^"]*"', "", expression)
    rest = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring)\s*\([^)]*\)", "", rest)
    words = re.findall(r"(?<![\w:])[a-zA-Z_:][\w:]*(?![\w:]*\s*\()", rest)
    return set(words) - {"and", "or", "unless", "by", "without", "on", "ignoring", "offset", "bool"}


@contextlib.contextmanager
def running(command: list[str], log: Path, **more):
    """A process for the length of a test; its output goes to `log`."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **more)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
