import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from threeloops.product.service.observability import METRICS, ServiceMetrics


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def metrics(clock):
    return ServiceMetrics("tiny", clock=clock)


def read(metrics):
    """Every sample of what Prometheus would read: (name, its labels but the common ones) → value."""
    found = {}
    for family in text_string_to_metric_families(metrics.text()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("model_name"), labels.pop("engine")) == ("tiny", "0")
            found[sample.name, *labels.values()] = sample.value
    return found


def load(**changes):
    names = "running waiting paused blocks_free blocks_total preemptions prefix_tokens_asked prefix_tokens_hit".split()
    return SimpleNamespace(**(dict.fromkeys(names, 0) | changes))


def test_a_request_is_measured_from_its_arrival_to_its_last_token(metrics, clock):
    seen = metrics.started(prompt_tokens=30)
    clock.now += 2
    seen.admitted()
    for gap in (1, 0.25, 0.5):
        clock.now += gap
        seen.token()
    clock.now += 0.125
    seen.finished("length")
    found = read(metrics)
    expected = {
        "vllm:request_queue_time_seconds": 2,
        "vllm:time_to_first_token_seconds": 3,
        "vllm:request_prefill_time_seconds": 1,
        "vllm:request_decode_time_seconds": 0.75,
        "vllm:e2e_request_latency_seconds": 3.875,
        "vllm:request_prompt_tokens": 30,
        "vllm:request_generation_tokens": 3,
    }
    for name, value in expected.items():
        assert (found[f"{name}_sum",], found[f"{name}_count",]) == (value, 1), name
    gaps = "vllm:inter_token_latency_seconds"
    assert (found[f"{gaps}_sum",], found[f"{gaps}_count",], found[f"{gaps}_bucket", "0.3"]) == (0.75, 2, 1)
    assert (found["vllm:prompt_tokens_total",], found["vllm:generation_tokens_total",]) == (30, 3)
    ended = {key[1]: value for key, value in found.items() if key[0] == "vllm:request_success_total"}
    assert ended == {"stop": 0, "length": 1, "abort": 0, "error": 0}


def test_a_request_that_was_refused_leaves_only_the_refusal(metrics):
    before = read(metrics)
    metrics.started(prompt_tokens=30)
    metrics.refused("overloaded")
    after = read(metrics)
    changed = {key for key in after if after[key] != before.get(key) and not key[0].endswith("_created")}
    assert changed == {("threeloops:requests_refused_total", "overloaded")}


def test_a_request_without_a_token_has_no_time_to_first_token(metrics, clock):
    seen = metrics.started(prompt_tokens=5)
    clock.now += 1
    seen.finished("cancelled")
    seen.finished("stop")  # the first counts
    found = read(metrics)
    assert found["vllm:time_to_first_token_seconds_count",] == found["vllm:prompt_tokens_total",] == 0
    assert found["vllm:request_prefill_time_seconds_count",] == 0
    assert found["vllm:e2e_request_latency_seconds_sum",] == 1
    assert found["vllm:request_queue_time_seconds_sum",] == 1, "it was in the queue until it left"
    assert (found["vllm:request_success_total", "abort"], found["vllm:request_success_total", "stop"]) == (1, 0)


def test_a_reason_that_is_none_is_refused(metrics):
    with pytest.raises(ValueError, match="reason = 'tired': expected one of stop, length"):
        metrics.started(1).finished("tired")


def test_the_queue_in_front_of_the_engine_is_part_of_what_waits(metrics):
    metrics.engine(load(running=3, waiting=2, paused=1, blocks_free=25, blocks_total=100), queued=7)
    found = read(metrics)
    assert found["vllm:num_requests_running",] == 3
    assert found["vllm:num_requests_waiting",] == 9
    assert found["threeloops:num_requests_paused",] == 1
    assert found["vllm:kv_cache_usage_perc",] == 0.75
    metrics.engine(load())
    assert read(metrics)["vllm:kv_cache_usage_perc",] == 0


def test_an_engine_that_does_not_answer_has_not_begun_anew(metrics):
    for look in (load(running=3, preemptions=5), None, load(preemptions=5)):
        metrics.engine(look, queued=2)
        found = read(metrics)
        assert found["vllm:num_preemptions_total",] == 5 and found["vllm:num_requests_waiting",] >= 2
        assert found["vllm:num_requests_running",] == (3 if look and look.running else 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=20))
def test_counters_go_on_where_a_restarted_engine_begins_anew(looks):
    metrics, count, total = ServiceMetrics("tiny"), 0, 0
    for restarted, more in looks:
        lost = restarted and more < count  # otherwise nobody can tell
        count = more if lost else count + more
        total += more
        metrics.engine(load(preemptions=count, prefix_tokens_asked=2 * count, prefix_tokens_hit=count))
    found = read(metrics)
    assert found["vllm:num_preemptions_total",] == found["vllm:prefix_cache_hits_total",] == total
    assert found["vllm:prefix_cache_queries_total",] == 2 * total


def test_counts_of_cache_and_logs_are_taken_over(metrics):
    for _ in range(2):
        metrics.cache(hits=3, misses=2, errors=1)
        metrics.log_lines_dropped(4)
    found = read(metrics)
    assert [found["threeloops:response_cache_total", result] for result in ("hit", "miss", "error")] == [3, 2, 1]
    assert found["threeloops:log_lines_dropped_total",] == 4


def test_two_services_in_one_process_do_not_meet():
    one, other = ServiceMetrics("tiny"), ServiceMetrics("tiny")
    one.started(1).token()
    assert read(other)["vllm:generation_tokens_total",] == 0


def test_a_models_name_may_be_any_text():
    name = 'a "b"\\\n{}é'
    families = text_string_to_metric_families(ServiceMetrics(name).text())
    assert {sample.labels["model_name"] for family in families for sample in family.samples} == {name}


def test_everything_in_the_catalog_and_nothing_else_is_exported(metrics):
    metrics.refused("overloaded")
    metrics.cache(1, 1, 1)
    exported = {key[0] for key in read(metrics) if not key[0].endswith("_created")}
    assert exported == {series for metric in METRICS for series in metric.series}


VLLM = """
num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries_total prefix_cache_hits_total
num_preemptions_total prompt_tokens_total generation_tokens_total request_success_total request_prompt_tokens_bucket
request_generation_tokens_bucket time_to_first_token_seconds_bucket inter_token_latency_seconds_bucket
e2e_request_latency_seconds_bucket request_queue_time_seconds_bucket request_prefill_time_seconds_bucket
request_decode_time_seconds_bucket
"""
"""As docs.vllm.ai lists them. A dashboard for vLLM asks for these."""


def test_vllms_names_are_vllms():
    ours = {metric.series[0] for metric in METRICS if metric.name.startswith("vllm:")}
    assert ours == {f"vllm:{name}" for name in VLLM.split()}


@pytest.mark.parametrize("metric", [metric for metric in METRICS if metric.kind == "histogram"], ids=lambda m: m.name)
def test_buckets_rise_and_hold_a_fast_request_apart_from_a_slow_one(metric):
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert math.inf not in metric.buckets  # the client library adds it
    if metric.name.endswith("seconds"):
        assert metric.buckets[0] <= 0.001
        assert metric.buckets[-1] >= 60
