"""The service's own measurements for Prometheus. `catalog.py` lists them.

Latencies are histograms. A mean hides what the slowest tenth of the users experience, and percentiles of several
replicas cannot be added, whereas buckets can.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from threeloops.product.service.observability.catalog import METRICS

__all__ = ["EngineLoad", "RequestMetrics", "ServiceMetrics"]

_KINDS: dict[str, Callable[..., Any]] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "abort": "abort", "error": "error"}
"""Our reasons in vLLM's words."""

_LONGEST_CODE = 64


class EngineLoad(Protocol):
    """The state of an engine at one moment. Counts of events begin when its process started."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def paused(self) -> int: ...
    @property
    def blocks_free(self) -> int: ...
    @property
    def blocks_total(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def prefix_tokens_asked(self) -> int: ...
    @property
    def prefix_tokens_hit(self) -> int: ...


class ServiceMetrics:
    """The metrics of one model on one engine. Give each its own `registry`, so that two services can share a
    process."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self, model_name: str, registry: CollectorRegistry | None = None, clock: Callable[[], float] = time.monotonic
    ):
        self.registry = registry or CollectorRegistry()
        self.clock = clock
        self._own = {"model_name": model_name, "engine": "0"}
        self._counted: dict[str, int] = {}
        self._families: dict[str, Any] = {}
        self._children: dict[tuple[str, ...], Any] = {}
        for metric in METRICS:
            options: dict[str, Any] = {"buckets": metric.buckets} if metric.buckets else {}
            labels = (*self._own, *metric.labels)
            family = _KINDS[metric.kind](metric.name, metric.help, labels, registry=self.registry, **options)
            self._families[metric.name] = family
            if not metric.labels:
                self._of(metric.name)  # so that it reads 0 from the beginning
        for reason in set(_REASONS.values()):
            self._of("vllm:request_success", reason)

    def started(self, prompt_tokens: int) -> "RequestMetrics":
        """Return the metrics of a request that is about to queue. If it is then refused, nothing is counted."""
        return RequestMetrics(self, prompt_tokens)

    def refused(self, code: str) -> None:
        """Count a refused request. `code` is one of the service's own error codes, never a client's text."""
        self._of("threeloops:requests_refused", code[:_LONGEST_CODE]).inc()

    def engine(self, load: EngineLoad | None, queued: int = 0) -> None:
        """Report the engine's load, or None if the engine does not answer. `queued` requests wait in front of it.

        They count as waiting, because an autoscaler that sees only the engine's own queue sees the least when there is
        the most to do. Counters continue when a restarted engine begins at zero.
        """
        if load is None:  # its counters stay: they are not 0, they are unknown
            for name in ("vllm:num_requests_running", "threeloops:num_requests_paused", "vllm:kv_cache_usage_perc"):
                self._of(name).set(0)
            self._of("vllm:num_requests_waiting").set(queued)
            return
        self._of("vllm:num_requests_running").set(load.running)
        self._of("vllm:num_requests_waiting").set(load.waiting + queued)
        self._of("threeloops:num_requests_paused").set(load.paused)
        used = load.blocks_total - load.blocks_free
        self._of("vllm:kv_cache_usage_perc").set(used / load.blocks_total if load.blocks_total else 0.0)
        self._advance("vllm:num_preemptions", load.preemptions)
        self._advance("vllm:prefix_cache_queries", load.prefix_tokens_asked)
        self._advance("vllm:prefix_cache_hits", load.prefix_tokens_hit)

    def cache(self, hits: int, misses: int, errors: int) -> None:
        """Take over the counts of a response cache."""
        for result, count in (("hit", hits), ("miss", misses), ("error", errors)):
            self._advance("threeloops:response_cache", count, result)

    def log_lines_dropped(self, count: int) -> None:
        self._advance("threeloops:log_lines_dropped", count)

    def text(self) -> str:
        """Return the metrics in Prometheus' text format, whose type is `content_type`."""
        return generate_latest(self.registry).decode()

    def observe(self, name: str, value: float) -> None:
        self._of(name).observe(value)

    def count(self, name: str, amount: float, *labels: str) -> None:
        self._of(name, *labels).inc(amount)

    def _of(self, name: str, *labels: str) -> Any:
        """A metric with its labels; looked up once, because this is done for every token."""
        key = (name, *labels)
        if key not in self._children:
            self._children[key] = self._families[name].labels(*self._own.values(), *labels)
        return self._children[key]

    def _advance(self, name: str, total: int, *labels: str) -> None:
        key = " ".join((name, *labels))
        before = self._counted.get(key, 0)
        self._counted[key] = total
        self.count(name, total - before if total >= before else total, *labels)


class RequestMetrics:
    """One request, from its arrival to its end. `finished` may be called more than once: the first counts."""

    def __init__(self, metrics: ServiceMetrics, prompt_tokens: int):
        self._metrics = metrics
        self._prompt_tokens = prompt_tokens
        self._arrived = metrics.clock()
        self._admitted: float | None = None
        self._first = self._latest = 0.0
        self._tokens = 0
        self._ended = False

    def admitted(self) -> None:
        """Note that the request leaves the queue in front of the engine. Without this call it is there to its end."""
        self._admitted = self._metrics.clock()

    def token(self) -> None:
        now = self._metrics.clock()
        if self._tokens:
            self._metrics.observe("vllm:inter_token_latency_seconds", now - self._latest)
        else:
            self._first = now
            self._metrics.observe("vllm:time_to_first_token_seconds", now - self._arrived)
            self._metrics.count("vllm:prompt_tokens", self._prompt_tokens)
        self._metrics.count("vllm:generation_tokens", 1)
        self._latest = now
        self._tokens += 1

    def finished(self, reason: str) -> None:
        """`reason` is "stop", "length", "cancelled" or "error". Raises ValueError for another."""
        if reason not in _REASONS:
            raise ValueError(f"reason = {reason!r}: expected one of {', '.join(_REASONS)}")
        if self._ended:
            return
        self._ended = True
        metrics = self._metrics
        now = self._metrics.clock()
        metrics.count("vllm:request_success", 1, _REASONS[reason])
        metrics.observe("vllm:request_prompt_tokens", self._prompt_tokens)
        metrics.observe("vllm:request_generation_tokens", self._tokens)
        metrics.observe("vllm:e2e_request_latency_seconds", now - self._arrived)
        admitted = now if self._admitted is None else self._admitted
        metrics.observe("vllm:request_queue_time_seconds", admitted - self._arrived)
        if self._tokens:
            metrics.observe("vllm:request_prefill_time_seconds", self._first - admitted)
            metrics.observe("vllm:request_decode_time_seconds", self._latest - self._first)
