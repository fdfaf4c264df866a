"""The serving benchmark: what it says of policies and waste in virtual time, and that its peer has our weights."""

from statistics import mean
from types import SimpleNamespace

import pytest
import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import Engine
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.decode.runner import ModelRunner
from threeloops.product.loadgen import SLO, measure, poisson, replay, trace, uniform

from benchmarks import serving_prediction, serving_transformers
from benchmarks.result import Unmeasured
from benchmarks.serving_policies import ANSWERS, ONE, PROMPTS, policies, virtual_engine
from benchmarks.serving_prediction import CpuClock, fitted_to, taking_turns
from benchmarks.serving_transformers import Transformers, no_transformers
from benchmarks.serving_waste import waste_rows


def test_waste_is_what_blocks_leave_empty_and_a_few_times_less_than_what_is_reserved():
    waste = {each.by: mean(each.samples) for each in waste_rows(requests=120)}
    assert waste["blocks of 16"] <= 0.03
    assert waste["blocks of 8"] < waste["blocks of 16"] < waste["blocks of 32"] < waste["blocks of 128"]
    assert waste["reserved: prompt and longest answer asked for"] > 0.1
    assert waste["reserved: the model's 2048 tokens"] > 0.5


def test_on_an_h100_batching_is_several_times_faster_and_continuous_batching_the_fastest():
    at_once = trace(poisson(1e9), 60, PROMPTS, ANSWERS, seed=1)
    slow = trace(poisson(4), 60, PROMPTS, ANSWERS, seed=1)
    throughput, goodput = {}, {}
    for name, policy in policies(16).items():
        throughput[name] = measure(replay(virtual_engine(policy), at_once).requests).throughput
        goodput[name] = measure(replay(virtual_engine(policy), slow).requests, SLO(1.0, 0.05)).goodput
    assert 2 * throughput[ONE] < throughput["static"] <= throughput["dynamic"] * 1.01
    assert throughput["static"] < throughput["continuous"] < throughput["chunked"]
    assert goodput["static"] < goodput["dynamic"] < goodput["continuous"]


def test_the_clock_of_cpu_seconds_passes_over_waiting():
    clock = CpuClock()
    before = clock.now()
    clock.sleep_until(before + 1000)
    after = clock.now()
    clock.sleep_until(before)
    assert before + 1000 <= after <= clock.now() < before + 1010


def test_a_stopped_clock_stands_still_until_it_is_started(monkeypatch):
    now = 10.0
    monkeypatch.setattr(serving_prediction, "time", SimpleNamespace(process_time=lambda: now))
    clock = CpuClock()
    now = 13.0
    clock.stop()
    now = 20.0
    assert clock.now() == 3.0
    clock.start()
    now = 22.5
    assert clock.now() == 5.5
    clock.sleep_until(6.0)
    assert clock.now() == 6.0


def test_engines_that_take_turns_finish_all_traces_on_clocks_of_their_own():
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny()).eval()

    def engine(model, policy, clock):
        return Engine(ModelRunner(model, 64, 4), BlockManager(64, 4), policy, clock)

    traces = {rate: trace(poisson(rate, 1), 12, uniform(2, 20), uniform(3, 9), seed=1) for rate in (2.0, 1e6)}
    done = taking_turns(model, engine, traces)
    for rate, arrivals in traces.items():
        assert [len(request.output) for request in done[rate].requests] == [each.max_tokens for each in arrivals]
        computed = sum(step.seconds for step in done[rate].steps)
        assert 0 < computed < 5
    assert done[2.0].steps[-1].end > traces[2.0][-1].at, "waiting passes on the clock"
    assert done[1e6].steps[-1].end < 2, "the time of the other engine does not"
    fitted = fitted_to(done[2.0])
    assert sum(map(fitted, (step.shape for step in done[2.0].steps))) == pytest.approx(
        sum(step.seconds for step in done[2.0].steps), rel=0.1
    )


@pytest.mark.slow  # the peer is in an environment of its own, which CI does not make
@pytest.mark.skipif(bool(no_transformers()), reason="transformers is not installed; `make peers` does")
def test_the_peer_has_our_weights():
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(kv_heads=1)).eval()
    Transformers(model)
    with pytest.raises(Unmeasured, match="logits differ by up to"):
        Transformers(_broken(model))


def _broken(model):
    """The same weights, and other logits."""

    class Changing(GPT):
        def forward(self, *arguments, **more):
            return super().forward(*arguments, **more) + 1

    changing = Changing(model.config).eval()
    changing.load_state_dict(model.state_dict())
    return changing


def test_without_the_peer_it_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(serving_transformers, "no_transformers", lambda: "absent")
    with pytest.raises(Unmeasured, match="absent"):
        Transformers(GPT(GPTConfig.tiny()))
