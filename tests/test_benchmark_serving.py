"""The serving benchmark: what it says of policies and waste in virtual time, and that its peer has our weights."""

from statistics import mean

import pytest
import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.loadgen import SLO, measure, poisson, replay, trace

from benchmarks import serving_transformers
from benchmarks.result import Unmeasured
from benchmarks.serving_policies import ANSWERS, ONE, PROMPTS, policies, virtual_engine
from benchmarks.serving_prediction import CpuClock
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
