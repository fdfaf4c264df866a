"""Twenty questions of the kind that people ask: each gets a plan within what physics allows, or a useful sentence."""

import pytest
from threeloops.capstone import Infeasible, make_plan, read_prices
from threeloops.capstone.scenario import ScenarioError, scenario_from
from threeloops.hardware.accelerators import accelerator

TRAIN = "[training]\ntokens = {tokens}\nbatch = {batch}\nsequence = {sequence}\ndeadline_days = {days}\n"
SIZES = (
    "[model]\nlayers = {}\nwidth = {}\nheads = {}\nkv_heads = {}\nhidden = {}\nvocabulary = {}\n"  # as in config.json
)
EIGHT = '[model]\npreset = "llama-3-8b"\n'
SEVEN = '[model]\npreset = "llama-2-7b"\n'
SEVENTY = '[model]\npreset = "llama-3-70b"\n'
MIXTRAL = SIZES.format(32, 4096, 32, 8, 14336, 32000) + "experts = 8\nexperts_per_token = 2\n"
QWEN_32B = SIZES.format(64, 5120, 64, 8, 25600, 151936) + "head_dim = 128\n"
SMALL = SIZES.format(28, 1536, 12, 2, 8960, 151936) + "tied = true\n"
"""Qwen2.5-1.5B: 1.54 billion parameters by its model card."""
GPT_3 = SIZES.format(96, 12288, 96, 96, 49152, 50257) + "gated = false\ntied = true\n"


def training(tokens: float, batch: int, sequence: int, days: float = 365.0, more: str = "") -> str:
    return TRAIN.format(tokens=tokens, batch=batch, sequence=sequence, days=days) + more + "\n"


def cluster(gpus: int, *names: str, more: str = "") -> str:
    listed = ", ".join(f'"{name}"' for name in names)
    return f"[cluster]\naccelerators = [{listed}]\ngpus = {gpus}\n{more}\n"


def serving(rate: float, prompt: int, output: int, more: str = "") -> str:
    return (
        f"[serving]\npeak_requests_per_second = {rate}\nprompt_tokens = {prompt}\noutput_tokens = {output}\n"
        f"ttft_seconds = 2.0\ntpot_seconds = 0.05\n{more}\n"
    )


def planned(text: str):
    return make_plan(scenario_from(f'title = "a question"\n{text}'.encode(), "question.toml"), read_prices())


PLANS = {  # the scenario, billions of parameters, and the share of 6·active·tokens / peak that the run may take
    "LoRA of a 70B model on one node": (
        SEVENTY + training(5e7, 32, 2048, more="lora_rank = 16") + cluster(8, "H100"),
        70.6,
        (0.67, 4),
    ),
    "QLoRA of an 8B model on one card": (
        EIGHT + training(2e7, 16, 2048, more="lora_rank = 8\nbase_bits = 4") + cluster(1, "A100"),
        8.0,
        (0.67, 5),
    ),
    "all weights of an 8B model on one node": (EIGHT + training(1e9, 64, 8192) + cluster(8, "H100"), 8.0, (1, 4)),
    "Mixtral from the start": (MIXTRAL + training(1e11, 1024, 4096) + cluster(256, "H100"), 46.7, (1, 4)),
    "Qwen3-32B, whose heads do not divide its width": (
        QWEN_32B + training(1e10, 512, 4096) + cluster(64, "H200"),
        32.8,
        (1, 4),
    ),
    "a small model with one matrix for embedding and head": (
        SMALL + training(3e10, 256, 2048) + cluster(8, "A100"),
        1.54,
        (1, 4),
    ),
    "GPT-3, without gates": (
        GPT_3 + training(3e11, 1536, 2048) + cluster(1024, "A100", more="link_gbits = 200"),
        174.6,
        (1, 4),
    ),
    "FP8": (SEVENTY + training(1e11, 512, 8192, more='precision = "fp8"') + cluster(128, "H100"), 70.6, (0.5, 4)),
    "sequences of a million tokens": (
        EIGHT + training(1e9, 4, 1_048_576) + cluster(64, "H100", more='attention = "fastest"'),
        8.0,
        (17, 68),
    ),  # attention needs 16 times the FLOPs of the matrices
    "24 GPUs": (EIGHT + training(1e10, 96, 4096) + cluster(24, "H100"), 8.0, (1, 4)),
    "cards at 70% of their power": (
        SEVEN + training(1e10, 128, 4096) + cluster(8, "H100", more="power_limit = 0.7"),
        6.7,
        (1, 4),
    ),
    "a team that measured its own kernels": (
        SEVEN + training(1e10, 128, 4096) + cluster(8, "H100", more="speed = 0.9"),
        6.7,
        (1, 4),
    ),
    "spot instances": (
        SEVEN
        + training(1e10, 256, 4096)
        + cluster(64, "H100", more="node_mtbf_days = 0.5\nrepair_hours = 0.5")
        + "[prices]\ndiscount = 0.6\n",
        6.7,
        (1, 5),
    ),
    "rent only": (SEVEN + training(1e10, 128, 4096) + cluster(8, "H100") + "[prices]\nowning = false\n", 6.7, (1, 4)),
    "one candidate without a price": (SEVEN + training(1e10, 128, 4096) + cluster(8, "MI300X", "H100"), 6.7, (1, 4)),
}


@pytest.mark.parametrize("question", PLANS)
def test_a_question_gets_a_plan(question):
    text, billions, (least, most) = PLANS[question]
    made = planned(text)
    assert made["parameters"] / 1e9 == pytest.approx(billions, rel=0.01)
    peak = accelerator(made.decision("accelerator").choice).rate("bf16")
    active = next((q.value for q in made.quantities if q.name == "active_parameters"), made["parameters"])
    ideal = 6 * active * made["tokens"] / (made["gpus"] * peak) / 86400
    assert least <= made["training_days"] / ideal <= most
    assert made["memory_per_gpu"] <= 0.9 * made["memory_limit"]
    assert made["training_days_low"] < made["training_days_high"]
    assert made["total_cost"] == pytest.approx(sum(made[line.quantity] for line in made.costs))


def test_a_chat_and_long_prompts_are_served_within_the_peak():
    for prompt, output, rate in ((500, 250, 40.0), (8000, 50, 20.0)):
        made = planned(EIGHT + cluster(8, "H100") + serving(rate, prompt, output))
        flops = 2 * 8.03e9 * (prompt + output)
        assert 0 < made["replica_rate"] * flops <= made["gpus_per_replica"] * accelerator("H100").rate("bf16")
        assert made["most_replicas"] * made["replica_rate"] >= rate


REFUSED = {
    "all weights of a 70B model on one node": (
        SEVENTY + training(1e8, 16, 4096) + cluster(8, "H100"),
        "the model does not fit: on 8 GPUs the leanest of .* needs .* per GPU",
    ),
    "a deadline of an hour": (
        SEVEN + training(1e9, 128, 4096, days=1 / 24) + cluster(8, "H100"),
        "training takes .* and the deadline is in .* It would do with cluster.gpus",
    ),
    "a 405B model for a thousand dollars": (
        '[model]\npreset = "llama-3-405b"\n'
        + training(1e9, 64, 4096)
        + cluster(128, "H200")
        + "[budget]\ntotal = 1000\n",
        "the plan costs .* and the budget is 1,000 USD",
    ),
}


@pytest.mark.parametrize("question", REFUSED)
def test_a_question_gets_a_sentence(question):
    text, sentence = REFUSED[question]
    with pytest.raises(Infeasible, match=sentence):
        planned(text)


def test_no_price_at_all_is_said():
    with pytest.raises(ScenarioError, match="no price of item 'cloud' for 'MI300X': expected USD per GPU-hour"):
        planned(SEVEN + training(1e9, 64, 4096) + cluster(8, "MI300X"))
