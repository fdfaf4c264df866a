import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from threeloops.product.service.observability import request_span

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def tracing():
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, provider


def test_a_request_is_a_span_with_the_moments_at_which_its_phases_began(tracing):
    exporter, provider = tracing
    with request_span("tiny", request_id="r1", prompt_tokens=7, max_tokens=9, provider=provider) as span:
        for name in ("queue", "prefill", "decode"):
            span.event(name)
        span.finished("stop", completion_tokens=3)
        assert len(span.trace_id) == 32
    (found,) = exporter.get_finished_spans()
    assert dict(found.attributes) == {
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ("stop",),
        "threeloops.request_id": "r1",
    }
    assert [event.name for event in found.events] == ["queue", "prefill", "decode"]
    times = [found.start_time, *(event.timestamp for event in found.events), found.end_time]
    assert times == sorted(times)
    assert (found.parent, found.status.status_code) == (None, StatusCode.UNSET)


def test_a_callers_trace_goes_on(tracing):
    exporter, provider = tracing
    with request_span("tiny", f"00-{TRACE}-{PARENT}-01", request_id="r", provider=provider) as span:
        assert span.trace_id == TRACE
    (found,) = exporter.get_finished_spans()
    assert (f"{found.parent.span_id:016x}", found.parent.is_remote) == (PARENT, True)


def test_a_caller_who_does_not_sample_is_not_sampled(tracing):
    exporter, provider = tracing
    with request_span("tiny", f"00-{TRACE}-{PARENT}-00", request_id="r", provider=provider):
        pass
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize(
    "header",
    [
        "",
        "x",
        "00-0-0-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}",
        "é" * 10**5,
    ],
    ids=lambda text: text[:20],
)
def test_a_malformed_header_begins_a_new_trace(tracing, header):
    exporter, provider = tracing
    with request_span("tiny", header, request_id="r", provider=provider):
        pass
    (found,) = exporter.get_finished_spans()
    assert found.parent is None
    assert f"{found.context.trace_id:032x}" != TRACE


def test_an_error_is_named_but_not_quoted(tracing):
    exporter, provider = tracing
    with pytest.raises(ValueError), request_span("tiny", request_id="r", provider=provider):
        raise ValueError("my diary")
    (found,) = exporter.get_finished_spans()
    assert found.status.status_code is StatusCode.ERROR
    assert found.attributes["error.type"] == "ValueError"
    assert "my diary" not in found.to_json()


def test_a_client_that_goes_away_is_no_error(tracing):
    exporter, provider = tracing
    with pytest.raises(GeneratorExit), request_span("tiny", request_id="r", provider=provider):
        raise GeneratorExit
    assert exporter.get_finished_spans()[0].status.status_code is StatusCode.UNSET


def test_spans_that_overlap_are_no_parents_of_each_other(tracing):
    """As requests do in one event loop."""
    exporter, provider = tracing
    first = request_span("tiny", request_id="1", provider=provider)
    second = request_span("tiny", request_id="2", provider=provider)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert [span.parent for span in exporter.get_finished_spans()] == [None, None]


def test_without_opentelemetry_configured_nothing_is_recorded():
    with request_span("tiny", request_id="r") as span:
        span.event("queue")
        span.finished("stop", 1)
        assert span.trace_id is None
    with request_span("tiny", f"00-{TRACE}-{PARENT}-01", request_id="r") as span:
        assert span.trace_id == TRACE  # for the logs
