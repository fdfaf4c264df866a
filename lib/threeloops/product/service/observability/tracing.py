"""A trace of each request with OpenTelemetry: when it queued, began its prefill, and decoded.

Tracing is off unless OpenTelemetry has been configured in this process, as by `opentelemetry-instrument threeloops
serve …`. Then spans go to the destination in its OTEL_ variables. If a caller sends W3C's header `traceparent`, its
trace continues here. The attributes follow OpenTelemetry's conventions for generative AI, and contain neither prompts
nor answers.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["RequestSpan", "request_span"]

_NAME = "llm_request"
_CONTEXT = TraceContextTextMapPropagator()


class RequestSpan:
    """The span of one request. Everything here costs next to nothing while tracing is off."""

    def __init__(self, span: Span):
        self._span = span

    @property
    def trace_id(self) -> str | None:
        """The trace's id for the logs, or None if tracing is off and the caller sent none."""
        context = self._span.get_span_context()
        return f"{context.trace_id:032x}" if context.is_valid else None

    def event(self, name: str) -> None:
        """Note the beginning of a phase: "queue", "prefill" or "decode"."""
        self._span.add_event(name)

    def finished(self, reason: str, completion_tokens: int) -> None:
        self._span.set_attribute("gen_ai.response.finish_reasons", [reason])
        self._span.set_attribute("gen_ai.usage.output_tokens", completion_tokens)


@contextmanager
def request_span(
    model: str,
    traceparent: str | None = None,
    *,
    request_id: str,
    prompt_tokens: int | None = None,
    max_tokens: int | None = None,
    provider: TracerProvider | None = None,
) -> Iterator[RequestSpan]:
    """A span around one request. A malformed `traceparent` is ignored, as the standard asks: a new trace begins.

    If the block raises, the span says so by the exception's type; its message may quote the prompt.
    """
    tracer = trace.get_tracer("threeloops.service", tracer_provider=provider)
    parent = _CONTEXT.extract({"traceparent": traceparent}) if traceparent else None
    attributes: dict[str, str | int] = {"gen_ai.request.model": model, "threeloops.request_id": request_id}
    if prompt_tokens is not None:
        attributes["gen_ai.usage.input_tokens"] = prompt_tokens
    if max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = max_tokens
    span = tracer.start_span(_NAME, parent, SpanKind.SERVER, attributes)
    try:
        yield RequestSpan(span)
    except Exception as error:
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR))
        raise
    finally:
        span.end()
