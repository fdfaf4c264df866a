"""Compute the cost of a scenario on one accelerator: the parts of a plan, and the arithmetic that leads to the bill.

Models say how long a step takes, how much of the time is useful, and how many replicas a day needs. From there on
everything is sums and products in a `Sheet`, so that a spreadsheet can repeat it.
"""

import math
from dataclasses import dataclass

from threeloops.capstone.plan import CostLine, Evidence
from threeloops.capstone.scenario import Item, Price, Prices, Refusal, Scenario, Serving
from threeloops.capstone.serving import ServingPart, plan_serving
from threeloops.capstone.sheet import Sheet
from threeloops.capstone.training import TrainingPart, plan_training
from threeloops.hardware.accelerators import accelerator
from threeloops.hardware.measured import MEASURED_BY
from threeloops.training.planning import Transformer

__all__ = ["Candidate", "candidate", "candidates"]

_LINES = (
    ("Training: useful steps", "training_useful_cost"),
    ("Training: failures and checkpoints", "training_lost_cost"),
    ("Training: spare nodes", "spare_cost"),
    ("Serving: the fleet", "serving_cost"),
)


@dataclass(frozen=True)
class Candidate:
    """A scenario on one accelerator, feasible or (with `refused`) at least computed."""

    name: str
    scenario: Scenario
    training: TrainingPart | None
    serving: ServingPart | None
    sheet: Sheet
    costs: tuple[CostLine, ...]
    owned: bool
    """Whether hardware is bought: if that is allowed, within the budget, and cheaper than renting."""
    refused: Refusal | None
    """Why it is refused: it takes too long, or costs too much."""

    @property
    def total(self) -> float:
        return self.sheet["total_cost"]

    @property
    def days(self) -> float | None:
        """The days of training."""
        return self.sheet["training_days"] if self.training is not None else None


def candidate(scenario: Scenario, prices: Prices, name: str) -> Candidate:
    """Compute one accelerator's candidate. Raises Refusal if nothing can be computed: it does not fit, no promise can
    be kept, or no price of a cloud is known."""
    rent = _cloud_price(prices, name)
    training = plan_training(scenario, name) if scenario.training is not None else None
    serving = plan_serving(scenario, name) if scenario.serving is not None else None
    sheet = Sheet()
    if training is not None:
        _train(sheet, training)
    if scenario.serving is not None and serving is not None:
        _serve(sheet, scenario.serving, serving)
    owned = _price(sheet, scenario, prices, rent)
    if training is not None:
        sheet.derive("cost", *_TRAINING_COSTS)
    if serving is not None:
        sheet.derive("cost", *_SERVING_COSTS)
    lines = [(label, key) for label, key in _LINES if key in sheet.rows]
    sheet.derive("cost", ("total_cost", "Total cost", "USD", " + ".join(key for _, key in lines)))
    if training is not None:
        _ranges(sheet, [key for _, key in lines])
    costs = tuple(CostLine(label, key, sheet[key]) for label, key in lines)
    return Candidate(name, scenario, training, serving, sheet, costs, owned, _refused(scenario, name, sheet))


def _ranges(sheet: Sheet, lines: list[str]) -> None:
    """Add days and cost at the errors that predicted steps have had."""
    served = "".join(f" + {key}" for key in lines if key == "serving_cost")
    trained = " + ".join(key for key in lines if key != "serving_cost")
    for end, tenth in (("low", "faster"), ("high", "slower")):
        label = f"{end} end (one published run in ten was {tenth})"
        days = (f"training_days_{end}", f"Days of training, {label}", "days", f"training_days * error_{end}")
        cost = (f"total_cost_{end}", f"Total cost, {label}", "USD", f"({trained}) * error_{end}{served}")
        sheet.derive("training", days)
        sheet.derive("cost", cost)


def candidates(scenario: Scenario, prices: Prices) -> dict[str, Candidate | Refusal]:
    """Return what each accelerator of the scenario would cost, or why it is not feasible. Feasible ones come first, by
    cost."""
    outcomes: dict[str, Candidate | Refusal] = {}
    for name in scenario.cluster.accelerators:
        try:
            outcome = candidate(scenario, prices, name)
            outcomes[name] = outcome.refused or outcome
        except Refusal as refusal:
            outcomes[name] = refusal
    return dict(sorted(outcomes.items(), key=lambda pair: getattr(pair[1], "total", math.inf)))


def _refused(scenario: Scenario, name: str, sheet: Sheet) -> Refusal | None:
    training = scenario.training
    budget = scenario.budget
    if training is not None and sheet["training_days"] > training.deadline_days:
        return Refusal(
            "deadline",
            f"{name}: training takes {sheet['training_days']:.4g} days on {scenario.cluster.gpus} GPUs, and the "
            f"deadline is in {training.deadline_days:g} days",
            sheet["training_days"] / training.deadline_days,
        )
    if budget.total is not None and sheet["total_cost"] > budget.total:
        return Refusal(
            "budget",
            f"{name}: the plan costs {sheet['total_cost']:,.0f} {budget.currency}, and the budget is "
            f"{budget.total:,.0f} {budget.currency}",
            sheet["total_cost"] / budget.total,
        )
    return None


def _cloud_price(prices: Prices, name: str) -> Price:
    gpu = accelerator(name).name
    rent = prices.find("cloud", gpu)
    if rent is None:
        raise Refusal(
            "price",
            f"no price of item 'cloud' for {gpu!r}: expected USD per GPU-hour; add a [[price]] to a copy of the table "
            "and give it with --prices",
        )
    return rent


def _price(sheet: Sheet, scenario: Scenario, prices: Prices, rent: Price) -> bool:
    """Add the prices of a GPU-hour, rented and owned. Return whether owning is chosen."""
    gpu = accelerator(rent.accelerator).name
    sheet.put(
        "prices",
        ("cloud_list_price", f"{gpu} in a cloud, list price", rent.value, "USD/h", rent.level, rent.origin),
        ("discount", "Discount of a reservation", scenario.prices.discount, "share", "given", "prices.discount"),
    )
    sheet.derive("prices", ("rent_per_gpu_hour", "A rented GPU-hour", "USD/h", "cloud_list_price * (1 - discount)"))
    priced = _own(sheet, prices, gpu, scenario)
    budget = scenario.budget.total
    owned = (
        priced
        and scenario.prices.owning
        and (budget is None or sheet["outlay"] <= budget)
        and sheet["own_per_gpu_hour"] < sheet["rent_per_gpu_hour"]
    )
    chosen = "own_per_gpu_hour" if owned else "rent_per_gpu_hour"
    sheet.derive("prices", ("gpu_hour_price", "A GPU-hour of this plan", "USD/h", chosen))
    return owned


_OWN_PRICES: tuple[tuple[Item, str, str], ...] = (
    ("purchase", "purchase_per_gpu", "A GPU with its share of a server"),
    ("network", "network_per_gpu", "Switches and cables, per GPU"),
    ("power", "power_kw", "Power of a GPU with its share of a server"),
    ("hosting", "hosting_per_kw_month", "Space and cooling in a data centre"),
    ("electricity", "electricity_price", "Electricity"),
    ("pue", "pue", "Power of the site per power of its computers (PUE)"),
    ("support", "support_share", "Support and staff, as a share of the purchase"),
)

_OUTLAY = ("outlay", "To buy all GPUs and their network, at once", "USD",
           "owned_gpus * (purchase_per_gpu + network_per_gpu)")  # fmt: skip

_OWN_FORMULAS = (
    ("own_capital_per_year", "Written off per GPU and year", "USD/year",
     "(purchase_per_gpu + network_per_gpu) / life_years"),
    ("own_support_per_year", "Support per GPU and year", "USD/year", "purchase_per_gpu * support_share"),
    ("own_hosting_per_year", "Hosting per GPU and year", "USD/year", "power_kw * hosting_per_kw_month * 12"),
    ("own_fixed_per_hour", "An owned GPU per hour, busy or not", "USD/h",
     "(own_capital_per_year + own_support_per_year + own_hosting_per_year) / 8760"),
    ("own_energy_per_hour", "Electricity of a busy GPU", "USD/h", "power_kw * pue * electricity_price"),
    ("own_per_gpu_hour", "An owned GPU-hour of work", "USD/h",
     "own_fixed_per_hour / owned_utilisation + own_energy_per_hour"),
)  # fmt: skip

_BREAK_EVEN = (
    "break_even_utilisation", "Utilisation from which owning is cheaper", "share",
    "own_fixed_per_hour / (rent_per_gpu_hour - own_energy_per_hour)",
)  # fmt: skip


def _own(sheet: Sheet, prices: Prices, gpu: str, scenario: Scenario) -> bool:
    """Add the cost of an hour of owned hardware to the sheet, or return False if a price is not known."""
    own_prices = [
        (price, name, label)
        for item, name, label in _OWN_PRICES
        if (price := prices.find(item, gpu if item in ("purchase", "power") else "")) is not None
    ]
    if len(own_prices) < len(_OWN_PRICES):
        return False
    terms = scenario.prices
    sheet.put(
        "prices",
        *((name, label, price.value, price.unit, price.level, price.origin) for price, name, label in own_prices),
        ("life_years", "Over which a purchase is written off", terms.years, "years", "given", "prices.years"),
    )
    owned = {
        "training_gpu_hours": "gpus + spare_nodes * gpus_per_node",
        "serving_gpu_hours": "most_replicas * gpus_per_replica",
    }
    needed = " + ".join(gpus for hours, gpus in owned.items() if hours in sheet.rows)
    sheet.derive("prices", ("owned_gpus", "GPUs that would have to be bought", "GPU", needed))
    label = "Share of its life in which owned hardware has work"
    if terms.utilisation is None:
        hours = [name for name in ("training_gpu_hours", "spare_gpu_hours", "serving_gpu_hours") if name in sheet.rows]
        busy = sum(map(sheet.__getitem__, hours))
        if busy > sheet["owned_gpus"] * terms.years * 8760:
            sheet.put("prices", ("owned_utilisation", label, 1.0, "share", "model", "the job outlasts prices.years"))
        else:
            share = f"({' + '.join(hours)}) / (owned_gpus * life_years * 8760)"
            sheet.derive("prices", ("owned_utilisation", label, "share", share))
    else:
        sheet.put("prices", ("owned_utilisation", label, terms.utilisation, "share", "given", "prices.utilisation"))
    sheet.derive("prices", _OUTLAY, *_OWN_FORMULAS)
    if sheet["rent_per_gpu_hour"] > sheet["own_energy_per_hour"]:  # otherwise renting is always cheaper
        sheet.derive("prices", _BREAK_EVEN)
    return True


_TRAINING_FORMULAS = (
    ("steps", "Steps", "steps", "tokens / (batch * sequence)"),
    ("step_seconds", "Seconds of a step", "s", "gpu_seconds_per_step / gpus"),
    ("training_useful_hours", "Hours of useful steps", "h", "steps * step_seconds / 3600"),
    ("training_hours", "Hours with failures and checkpoints", "h", "training_useful_hours / useful_share"),
    ("training_days", "Days of training", "days", "training_hours / 24"),
    ("training_slack_days", "Days left before the deadline", "days", "deadline_days - training_days"),
    ("training_gpu_hours", "GPU-hours of training", "GPU·h", "gpus * training_hours"),
    ("spare_gpu_hours", "GPU-hours of spare nodes", "GPU·h", "spare_nodes * gpus_per_node * training_hours"),
    ("written_bytes", "Written by all checkpoints", "bytes",
     "training_useful_hours * 3600 / checkpoint_interval * checkpoint_bytes"),
    ("storage_bytes", "Storage for the checkpoints that are kept", "bytes", "kept_checkpoints * checkpoint_bytes"),
)  # fmt: skip
_TRAINING_COSTS = (
    ("training_useful_cost", "Useful steps", "USD", "gpus * training_useful_hours * gpu_hour_price"),
    ("training_lost_cost", "Failures and checkpoints", "USD",
     "gpus * (training_hours - training_useful_hours) * gpu_hour_price"),
    ("spare_cost", "Spare nodes", "USD", "spare_gpu_hours * gpu_hour_price"),
)  # fmt: skip


def _train(sheet: Sheet, part: TrainingPart) -> None:
    training = part.scenario.training
    cluster = part.scenario.cluster
    assert training is not None
    planner = "threeloops.training.planning"
    goodput = "threeloops.training.elastic.goodput"
    fullest = max(rank.total for rank in part.memory)
    model = part.scenario.trained
    error = part.error
    origin = f"threeloops.training.by_kernels, from times {MEASURED_BY}" if part.by_kernels else f"{planner}.step_time"
    residuals = f"{planner}.step_error: {error.runs} published runs on {' and '.join(error.devices)}"
    sheet.put(
        "training",
        ("parameters", "Parameters", model.parameters, "", "model", f"{planner}.Transformer"),
        *_kinds_of_parameters(model, f"{planner}.Transformer"),
        ("tokens", "Tokens to train on", training.tokens, "tokens", "given", "training.tokens"),
        ("batch", "Sequences per step", training.batch, "sequences", "given", "training.batch"),
        ("sequence", "Tokens per sequence", training.sequence, "tokens", "given", "training.sequence"),
        ("gpus_there", "GPUs of the cluster", cluster.gpus, "GPU", "given", "cluster.gpus"),
        ("gpus", "GPUs that train", part.gpus, "GPU", "model", f"{planner}.plans"),
        ("gpus_per_node", "GPUs per node", cluster.gpus_per_node, "GPU", "given", "cluster.gpus_per_node"),
        ("deadline_days", "Deadline", training.deadline_days, "days", "given", "training.deadline_days"),
        (
            "gpu_seconds_per_step",
            "GPU-seconds of a step",
            part.step.seconds * part.gpus,
            "GPU·s",
            "model",
            origin,
        ),
        ("error_low", "Published steps by predicted ones, fastest tenth", error.low, "", "model", residuals),
        ("error_high", "Published steps by predicted ones, slowest tenth", error.high, "", "model", residuals),
        ("mfu", "Model FLOPs utilisation", part.step.mfu, "share", "model", origin),
        ("memory_per_gpu", "Memory of the fullest GPU at its peak", fullest, "bytes", "model", f"{planner}.memory"),
        (
            "memory_limit",
            "Memory of a GPU",
            part.machine.memory_bytes,
            "bytes",
            "published",
            part.gpu.sources["memory_bytes"],
        ),
        (
            "checkpoint_bytes",
            "A checkpoint",
            part.checkpoint_bytes,
            "bytes",
            "model",
            "threeloops.training.sharded.cost.model_states",
        ),
        (
            "job_mtbf_hours",
            "Mean time between failures of the job",
            part.mtbf / 3600,
            "h",
            "model",
            f"{goodput}.cluster_mtbf",
        ),
        (
            "checkpoint_stop",
            "How long a save stops the job",
            part.save,
            "s",
            "model",
            "cluster.checkpoint_stop_seconds, or the copy to the host if that takes longer",
        ),
        (
            "kept_checkpoints",
            "Checkpoints that are kept",
            cluster.kept_checkpoints,
            "",
            "given",
            "cluster.kept_checkpoints",
        ),
        (
            "checkpoint_interval",
            "Work between two checkpoints",
            part.interval,
            "s",
            "model",
            f"{goodput}.best_interval",
        ),
        ("useful_share", "Useful share of the time", part.share, "share", "model", f"{goodput}.useful_share"),
        ("spare_nodes", "Spare nodes", part.spares, "nodes", "model", f"{goodput}.spares_needed"),
    )
    sheet.derive("training", *_TRAINING_FORMULAS)


def _kinds_of_parameters(model: Transformer, source: str) -> list[tuple[str, str, float, str, Evidence, str]]:
    """Rows for parameters that one token does not use, and for those that are trained alone."""
    rows: list[tuple[str, str, float, str, Evidence, str]] = []
    if model.experts:
        rows.append(("active_parameters", "Parameters that a token uses", model.active_parameters, "", "model", source))
    if model.adapter_rank:
        trained = model.layers * model.adapter_parameters
        rows.append(("trained_parameters", "Parameters that are trained", trained, "", "model", source))
    return rows


_SERVING_FORMULAS = (
    ("serving_gpu_hours", "GPU-hours of serving", "GPU·h", "replica_hours_per_day * gpus_per_replica * serving_days"),
    ("served_tokens", "Output tokens in all", "tokens", "requests_per_day * output_tokens * serving_days"),
)
_SERVING_COSTS = (
    ("serving_cost", "Serving", "USD", "serving_gpu_hours * gpu_hour_price"),
    ("cost_per_million_tokens", "Per million output tokens", "USD", "serving_cost / served_tokens * 1000000"),
)


def _serve(sheet: Sheet, serving: Serving, part: ServingPart) -> None:
    replica = part.replica
    fleet = "threeloops.product.fleet"
    roofline = "threeloops.product.batching.RooflineCost"
    sheet.put(
        "serving",
        ("serving_days", "Days of serving", serving.days, "days", "given", "serving.days"),
        (
            "output_tokens",
            "Output tokens per request",
            serving.output_tokens,
            "tokens",
            "given",
            "serving.output_tokens",
        ),
        ("requests_per_day", "Requests per day", part.demand.requests, "requests", "model", f"{fleet}.bursty_day"),
        ("gpus_per_replica", "GPUs per replica", replica.gpus, "GPU", "model", roofline),
        (
            "weights_bytes",
            "Weights of a replica",
            replica.weights_bytes,
            "bytes",
            "model",
            "threeloops.models.gpt_config",
        ),
        ("cache_bytes", "Keys and values of all seats", replica.cache_bytes, "bytes", "model", roofline),
        (
            "seats",
            "Requests that run together on a replica",
            replica.model.seats,
            "requests",
            "model",
            f"{fleet}.shared_model",
        ),
        (
            "replica_rate",
            "Requests that a replica can do",
            replica.requests_per_second,
            "requests/s",
            "model",
            f"{fleet}.SharedModel",
        ),
        ("tpot", "Seconds per output token, all seats taken", replica.tpot, "s", "model", f"{fleet}.SharedModel"),
        (
            "attainment",
            "Requests of the worst burst within the promise",
            part.attainment,
            "share",
            "model",
            f"{fleet}.simulate",
        ),
        ("replica_hours_per_day", "Replica-hours per day", part.replica_hours, "h", "model", f"{fleet}.flow"),
        ("most_replicas", "Replicas at the busiest time", part.most_replicas, "replicas", "model", f"{fleet}.flow"),
    )
    sheet.derive("serving", *_SERVING_FORMULAS)
