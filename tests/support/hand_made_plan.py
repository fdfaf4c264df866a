"""A plan typed by hand, of no model's making: what its documents must say is known without any planner."""

from dataclasses import replace

from threeloops.capstone import Bars, Change, CostLine, Decision, Gantt, Lines, Option, Plan, Series, Span
from threeloops.capstone.scenario import Scenario, scenario_from
from threeloops.capstone.sheet import Sheet

SCENARIO = b"""
title = "7B model, 64 GPUs: train & serve | a <trial>"
[model]
preset = "llama-2-7b"
[training]
tokens = 2e11
batch = 512
sequence = 4096
deadline_days = 21
[cluster]
accelerators = ["H100 SXM", "A100 SXM 80GB"]
gpus = 64
[budget]
total = 250000
[serving]
peak_requests_per_second = 40
prompt_tokens = 800
output_tokens = 200
ttft_seconds = 1.0
tpot_seconds = 0.05
"""


def scenario(gpus: int = 64) -> Scenario:
    return scenario_from(SCENARIO.replace(b"gpus = 64", f"gpus = {gpus}".encode()), "trial.toml")


def hand_made_plan(price: float = 3.99, gpus: int = 64) -> Plan:
    """Costs are linear in `price` (USD per GPU-hour), and days fall with `gpus`."""
    sheet = Sheet()
    sheet.put(
        "training",
        ("gpus", "GPUs that train", gpus, "GPU", "given", "cluster.gpus"),
        ("tokens", "Tokens to train on", 2e11, "tokens", "given", "training.tokens"),
        ("rate", "Tokens per GPU and second", 9876.5, "tokens/s", "model", "threeloops.training.planning.step_time"),
        ("useful_share", "Useful share of the time", 0.9731, "share", "model", "threeloops.training.elastic.goodput"),
    )
    sheet.put(
        "prices",
        ("h100", "Price of a GPU-hour", price, "USD/h", "published", "Lambda, instances, 2026-09-20"),
        ("R2", "Power of a GPU", 0.7, "kW", "estimate", "data sheet, 2024-01-01; estimate: all of it, always"),
        ("kwh", "Price of electricity", 0.083, "USD/kWh", "published", "EIA, 2026-08-25"),
        ("refund", "A number below zero", -2.5, "USD", "given", "nowhere"),
    )
    sheet.put("serving", ("replica_hours", "Replica hours", 1234.5, "h", "model", "threeloops.product.fleet"))
    sheet.derive(
        "training",
        ("seconds", "Training, if nothing fails", "s", "tokens / (rate * gpus)"),
        ("training_days", "Days of training", "days", "seconds / useful_share / 86400"),
        ("gpu_hours", "GPU-hours of training", "GPU·h", "training_days * 24 * gpus"),
    )
    sheet.derive(
        "cost",
        ("training_cost", "Cost of training", "USD", "gpu_hours * h100"),
        ("energy_cost", "Electricity", "USD", "gpu_hours * R2 * kwh"),
        ("serving_cost", "Cost of serving", "USD", "replica_hours * h100 - (refund - 1) * 2e0"),
        ("total_cost", "Total cost", "USD", "training_cost + energy_cost + serving_cost"),
    )
    lines = ("training_cost", "energy_cost", "serving_cost")
    return Plan(
        scenario(gpus), _DECISIONS, tuple(sheet.rows.values()),
        tuple(CostLine(sheet.rows[name].label, name, sheet[name]) for name in lines),
        (
            Option("H100 SXM", sheet["total_cost"], sheet["training_days"], gpus, "tp 2, pp 1, dp 32"),
            Option("A100 SXM 80GB", None, None, None, "does not finish in 21 days: 34.6 days"),
        ),
        (
            Change("bandwidth between nodes halves", sheet["total_cost"] * 1.04, 4.1, ()),
            Change("MTBF halves", sheet["total_cost"] * 1.02, 4.0, ("checkpoint interval: 42 min → 30 min",)),
            Change("demand doubles", None, None, ("the fleet needs 70 replicas, and 64 are allowed",)),
        ),
        _FIGURES,
    )  # fmt: skip


def with_title(plan: Plan, title: str) -> Plan:
    return replace(plan, scenario=replace(plan.scenario, title=title))


_LONG = (
    "ZeRO stage 1 leaves 31.2 GiB per GPU for activations, which is enough for microbatches of two sequences without "
    "recomputation, and a larger tensor-parallel group would only add all-reduces to every layer."
)
_DECISIONS = tuple(
    Decision(topic, choice, reason, margin, runner_up, f"threeloops.{model}")
    for topic, choice, reason, margin, runner_up, model in (
        (
            "accelerator",
            "H100 SXM",
            "The cheapest that meets the deadline.",
            "21% cheaper",
            "A100 SXM 80GB",
            "capstone",
        ),
        ("parallelism", "tp 2, pp 1, dp 32, ZeRO 1", _LONG, "4% faster", "tp 4, pp 1, dp 16", "training.planning"),
        ("precision", "bfloat16, float32 sums", "Half the bytes.", "2.1× faster", "float32", "training.planning"),
        ("recomputation", "none", "All activations fit.", "17.5 GiB free", "selective", "training.planning"),
        ("checkpoint interval", "42 min", "Daly's optimum.", "0.2% more goodput", "60 min", "training.elastic.goodput"),
        ("fleet", "2 to 11 replicas", "Meets the SLO on 95% of requests.", "5% of requests", "9", "product.fleet"),
        ("buy or rent", "rent", "Cheaper below 63% utilisation.", "$31,000", "buy", "capstone"),
    )
)
_MEMORY = Bars(
    "memory", "Memory per GPU, by what holds it", "Stacked bars: 48.5 of 80 GiB are in use with ZeRO 1.",
    ("ZeRO 1, chosen", "ZeRO 0, tp 2, recomputing all activations"), "bytes",
    tuple(
        Series(label, (0.0, 1.0), (a * 2**30, b * 2**30))
        for label, a, b in (
            ("weights", 6.3, 6.3), ("gradients", 6.3, 6.3), ("optimizer", 1.2, 38.0), ("activations", 34.7, 2.0),
        )
    ),
    74.5 * 2**30, "80 GB of the GPU",
)  # fmt: skip
_SCHEDULE = Gantt(
    "schedule", "One step of the pipeline", "Four stages work on eight microbatches; 27% of the step is bubble.",
    tuple(f"stage {stage}" for stage in range(4)),
    tuple(
        Span(stage, (stage + m) * 0.01, (stage + m + 1) * 0.01, "forward", str(m))
        for stage in range(4) for m in range(8)
    ) + tuple(
        Span(stage, (11 + 2 * (3 - stage + m)) * 0.01, (13 + 2 * (3 - stage + m)) * 0.01, "backward", str(m), m % 2)
        for stage in range(4) for m in range(8)
    ),
)  # fmt: skip
_GOODPUT = Lines(
    "goodput", "Goodput against the checkpoint interval", "A flat hill with its top at 42 minutes.",
    "minutes between checkpoints", "goodput (%)",
    tuple(
        Series(label, (1.0, 5.0, 20.0, 42.0, 120.0, 600.0), y)
        for label, y in (
            ("MTBF as published", (61.0, 88.0, 96.5, 97.3, 95.8, 82.0)),
            ("MTBF halved", (60.0, 86.0, 94.4, 94.3, 91.9, 71.0)),
        )
    ),
    True, 42.0, "chosen: 42 min",
)  # fmt: skip
_OWNERSHIP = Lines(
    "ownership", "Cost of a GPU-hour against utilisation", "Owning is cheaper from 63% on.",
    "share of its life with work (%)", "USD per GPU-hour of work",
    (
        Series("rent", (10.0, 100.0), (3.99, 3.99)),
        Series("buy", (10.0, 20.0, 40.0, 63.0, 80.0, 100.0), (25.1, 12.6, 6.3, 3.99, 3.1, 2.5)),
    ),
    False, 63.0, "break-even: 63%",
)  # fmt: skip
_REPLICAS = Lines(
    "replicas", "Replicas over the day", "Between 2 and 11 replicas follow the demand.", "hour of the day", "replicas",
    (
        Series("demand", tuple(map(float, range(25))), tuple(2 + abs(12 - h) * 0.7 for h in range(25))),
        Series("replicas", tuple(map(float, range(25))), tuple(float(3 + abs(12 - h) // 1.5) for h in range(25)), True),
    ),
)  # fmt: skip
_FIGURES = (_MEMORY, _SCHEDULE, _GOODPUT, _OWNERSHIP, _REPLICAS)
