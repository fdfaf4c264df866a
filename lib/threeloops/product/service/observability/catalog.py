"""Every metric of the service, as data. `metrics.py` fills them, and dashboards and alerts refer to them.

Metrics that begin with `vllm:` have the name, labels and meaning of vLLM's V1 engine (docs.vllm.ai, "Production
Metrics"; vllm/v1/metrics/loggers.py), so dashboards and autoscalers made for vLLM also read this service. Metrics that
begin with `threeloops:` are our own.

The buckets are vLLM's, which begin at the times of a large model on a GPU, and finer ones below them. A quantile that
falls into the first bucket is only a guess.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["METRICS", "Metric"]

_FAST = (0.001, 0.0025, 0.005)
_FIRST_TOKEN = (
    *_FAST, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_PER_TOKEN = (
    *_FAST, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST = (
    *_FAST, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


@dataclass(frozen=True)
class Metric:
    """`labels` are those beside `model_name` and `engine`, which all have. A counter's series ends in `_total`."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names by which Prometheus knows it."""
        endings = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
        return tuple(self.name + ending for ending in endings[self.kind])


METRICS = (
    Metric("gauge", "vllm:num_requests_running", "Number of requests in model execution batches."),
    Metric("gauge", "vllm:num_requests_waiting", "Number of requests waiting to be processed."),
    Metric("gauge", "vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),
    Metric("counter", "vllm:prefix_cache_queries", "Prefix cache queries, in number of queried tokens."),
    Metric("counter", "vllm:prefix_cache_hits", "Prefix cache hits, in number of cached tokens."),
    Metric("counter", "vllm:num_preemptions", "Cumulative number of preemptions."),
    Metric("counter", "vllm:prompt_tokens", "Number of prefill tokens processed."),
    Metric("counter", "vllm:generation_tokens", "Number of generation tokens processed."),
    Metric("counter", "vllm:request_success", "Requests that ended, by how.", ("finished_reason",)),
    Metric("histogram", "vllm:request_prompt_tokens", "Prompt tokens of a request.", buckets=_TOKENS),
    Metric("histogram", "vllm:request_generation_tokens", "Generated tokens of a request.", buckets=_TOKENS),
    Metric("histogram", "vllm:time_to_first_token_seconds", "Time to first token, s.", buckets=_FIRST_TOKEN),
    Metric("histogram", "vllm:inter_token_latency_seconds", "Gap between two tokens, s.", buckets=_PER_TOKEN),
    Metric("histogram", "vllm:e2e_request_latency_seconds", "From request to its end, s.", buckets=_REQUEST),
    Metric("histogram", "vllm:request_queue_time_seconds", "Time in the queue, s.", buckets=_REQUEST),
    Metric("histogram", "vllm:request_prefill_time_seconds", "Queue to first token, s.", buckets=_REQUEST),
    Metric("histogram", "vllm:request_decode_time_seconds", "First token to last, s.", buckets=_REQUEST),
    Metric("gauge", "threeloops:num_requests_paused", "Requests whose clients do not read."),
    Metric("counter", "threeloops:requests_refused", "Requests that were not taken on, by error code.", ("code",)),
    Metric(
        "counter",
        "threeloops:response_cache",
        "Response cache: lookups (hit, miss), and failures (error).",
        ("result",),
    ),
    Metric("counter", "threeloops:log_lines_dropped", "Log lines that could not be written."),
)
