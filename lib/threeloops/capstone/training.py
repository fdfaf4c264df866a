"""The training half of a plan, for one accelerator: how the model is cut, and the cost of failures. It uses
`training.planning` and `training.elastic.goodput`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from threeloops.capstone.scenario import Cluster, Refusal, Scenario
from threeloops.hardware.accelerators import Accelerator, accelerator
from threeloops.training.by_kernels import Assumptions, KernelCosts, published_runs, seconds_by_kernels
from threeloops.training.elastic.goodput import (
    best_interval,
    cluster_mtbf,
    spares_needed,
    useful_share,
)
from threeloops.training.planning import (
    ALLOCATED_SHARE,
    CostsOf,
    Machine,
    Memory,
    Plan,
    Rates,
    StepError,
    StepTime,
    Transformer,
    memory,
    node,
    plans,
    step_error,
    step_time,
)
from threeloops.training.sharded.cost import model_states
from threeloops.units import readable_bytes, readable_duration

__all__ = ["TrainingPart", "checkpoint_bytes", "least_gpu_seconds", "plan_training"]

_HOST_COPY = 32e9
"""Bytes/s from a GPU to its host if the table has no number: PCIe 4.0 × 16."""
_LONGEST_CONTEXT_WITHOUT_CUTTING = 32_768
_EFFICIENCY = 0.6
"""The share of the data sheet's FLOP/s where no kernels were published and none is given."""
_LONGER = 1.1
"""How much longer the job may take with fewer GPUs."""
_LEAST_SHARE = 0.01
"""A job that is useful for less of its time is refused."""


@dataclass(frozen=True)
class TrainingPart:
    """Times are seconds. `candidates` are all parallelisms that fit, fastest first."""

    scenario: Scenario
    gpu: Accelerator
    machine: Machine
    costs_of: CostsOf
    """How long computations and collectives take: from published kernels, or from rates."""
    candidates: tuple[StepTime, ...]
    save: float
    """How long an asynchronous save stops the job: until each GPU's share of the state is in its host's memory, and at
    least `cluster.checkpoint_stop_seconds`."""
    flush: float
    """The time from there until the checkpoint is on storage."""
    recovery: float
    mtbf: float
    """The mean time between failures of the job."""
    interval: float
    share: float
    """Useful share of the time at this interval."""
    synchronous: tuple[float, float]
    """Best interval and useful share if a save stops the job until it is on storage."""
    spares: int
    """Nodes that stand by; without any, the job waits for each repair."""
    other_spares: int
    """The number of spares in the comparison: none, or so many that hardly a failure waits."""
    other_share: float
    spares_saving: float
    """The share of GPU-hours, including spares, that the plan saves in this comparison."""

    @property
    def step(self) -> StepTime:
        return self.candidates[0]

    @property
    def by_kernels(self) -> bool:
        return isinstance(self.costs_of, KernelCosts)

    @property
    def error(self) -> StepError:
        """How far predictions of this kind are off, from published runs."""
        if self.by_kernels:
            return step_error(self.gpu.name, published_runs(), seconds_by_kernels)
        return step_error(self.gpu.name)

    def timed(self, plan: Plan) -> StepTime:
        """Return the step time of another plan on the same machine."""
        return step_time(self.scenario.trained, self.machine, plan, self.costs_of)

    @cached_property
    def memory(self) -> list[Memory]:
        """The memory of each pipeline rank."""
        return memory(self.scenario.trained, self.step.plan)

    @property
    def gpus(self) -> int:
        """The GPUs that train. More may be there: the planner leaves some idle if that is faster."""
        return self.step.plan.gpus

    @property
    def working_seconds(self) -> float:
        """The time per step, failures and checkpoints included."""
        return self.step.seconds / self.share

    @property
    def is_late(self) -> bool:
        training = self.scenario.training
        assert training is not None
        steps = training.tokens / (training.batch * training.sequence)
        return steps * self.working_seconds > training.deadline_days * 86400

    @property
    def idle_gpus(self) -> int:
        return self.scenario.cluster.gpus - self.gpus

    @property
    def checkpoint_bytes(self) -> float:
        return checkpoint_bytes(self.scenario.trained)


def checkpoint_bytes(model: Transformer) -> float:
    """The masters and optimizer states of all trained weights in float32: the bytes that a run needs to continue,
    however it was cut."""
    trained = model.layers * model.adapter_parameters if model.adapter_rank else model.parameters
    states = model_states([trained], 1, 0)
    return states.masters + states.optimizer


@lru_cache(maxsize=1024)
def _parallelisms(
    model: Transformer, machine: Machine, costs_of: CostsOf, gpus: int, batch: int, sequence: int
) -> tuple[StepTime, ...]:
    """`plans`, remembered: a scenario and its variations ask the same again."""
    cut = sequence > _LONGEST_CONTEXT_WITHOUT_CUTTING
    return tuple(plans(model, machine, gpus, batch, sequence, context=cut, costs_of=costs_of))


def plan_training(scenario: Scenario, name: str) -> TrainingPart:
    """Plan training on the accelerator of this name, on all GPUs or on a part of them.

    GPUs stay idle if the job is done sooner without them. They also stay idle if they would do less than half of their
    share of the work, provided that without them the job takes at most a tenth longer and still meets its deadline.

    Raises Refusal if nothing fits, or failures leave no time to work.
    """
    training = scenario.training
    assert training is not None
    gpu = accelerator(name)
    machine, costs_of = _machine(scenario, name)
    model = scenario.trained
    least = least_gpu_seconds(scenario, name)
    parts: list[TrainingPart] = []
    refusal: Refusal | None = None
    for gpus in _sizes(scenario.cluster):
        if parts and least / gpus >= _LONGER * min(part.working_seconds for part in parts):
            break
        if gpus * ALLOCATED_SHARE * machine.memory_bytes < checkpoint_bytes(model):
            break
        steps = _parallelisms(model, machine, costs_of, gpus, training.batch, training.sequence)
        if not steps:
            continue
        try:
            parts.append(_with_failures(scenario, gpu, machine, costs_of, steps))
        except Refusal as error:
            refusal = refusal or error
    if not parts:
        raise refusal or Refusal("memory", _why_nothing_fits(scenario, machine, costs_of, gpu))
    return _worthwhile(parts)


def _worthwhile(parts: list[TrainingPart]) -> TrainingPart:
    """Choose among parts on fewer and fewer GPUs."""
    fastest = min(parts, key=lambda part: part.working_seconds)
    chosen = fastest
    for part in parts:
        longer = part.working_seconds / chosen.working_seconds - 1
        is_late = part.is_late and not chosen.is_late
        if part.gpus >= chosen.gpus or part.working_seconds > _LONGER * fastest.working_seconds or is_late:
            continue
        if longer < (chosen.gpus / part.gpus - 1) / 2:
            chosen = part
    return chosen


def _sizes(cluster: Cluster) -> Iterator[int]:
    """Numbers of GPUs that can be used: all, then fewer and fewer nodes, then fewer GPUs of one node."""
    nodes = range(cluster.nodes, 1, -1)
    yield from (count * cluster.gpus_per_node for count in nodes)
    yield from range(min(cluster.gpus, cluster.gpus_per_node), 0, -1)


def _with_failures(
    scenario: Scenario, gpu: Accelerator, machine: Machine, costs_of: CostsOf, steps: tuple[StepTime, ...]
) -> TrainingPart:
    """Choose interval and spares for these parallelisms. Raises Refusal if failures leave no time to work."""
    cluster = scenario.cluster
    size = checkpoint_bytes(scenario.trained)
    gpus = steps[0].plan.gpus
    nodes = -(-gpus // cluster.gpus_per_node)
    stop = max(cluster.checkpoint_stop_seconds, size / gpus / (gpu.host_link_bandwidth or _HOST_COPY))
    flush = size / (cluster.storage_gbytes * 1e9)
    recovery = cluster.restart_seconds + flush
    repair = cluster.repair_hours * 3600
    mtbf = cluster_mtbf(cluster.node_mtbf_days * 86400, nodes)
    shortest = max(cluster.shortest_interval_seconds, steps[0].seconds)
    try:
        interval = max(best_interval(stop, mtbf), flush, shortest)
        blocking = max(best_interval(max(stop, flush), mtbf), shortest)
        needed = spares_needed(mtbf, repair)
        shares = {
            needed: useful_share(interval, stop, recovery, mtbf, flush),
            0: _or_nothing(interval, stop, recovery + repair, mtbf, flush),
        }
    except (OverflowError, ValueError):
        shares = {0: 0.0}
    if max(shares.values()) < _LEAST_SHARE:
        raise Refusal(
            "failures",
            f"the job fails every {readable_duration(mtbf)} and recovers in {readable_duration(recovery)}: it would "
            "hardly ever work",
        )
    hours = {spares: (nodes + spares) / max(share, _LEAST_SHARE) for spares, share in shares.items()}
    spares, other = sorted(hours, key=lambda count: hours[count])
    waits = recovery if spares else recovery + repair
    synchronous = blocking, useful_share(blocking, max(stop, flush), waits, mtbf)
    saving = 1 - hours[spares] / hours[other]
    return TrainingPart(
        scenario,
        gpu,
        machine,
        costs_of,
        steps,
        stop,
        flush,
        waits,
        mtbf,
        interval,
        shares[spares],
        synchronous,
        spares,
        other,
        shares[other],
        saving,
    )


def _or_nothing(*times: float) -> float:
    """`useful_share`, or 0 where failures come so much faster than recoveries that it is too small for a float."""
    try:
        return useful_share(*times)
    except OverflowError:
        return 0.0


def _machine(scenario: Scenario, name: str) -> tuple[Machine, CostsOf]:
    """Nodes of this accelerator with the links of the scenario's cluster, and how long computations take on them.
    Raises Refusal if the accelerator does not support the scenario's precision."""
    cluster = scenario.cluster
    efficiency = (cluster.efficiency or _EFFICIENCY) * cluster.speed * cluster.power_limit ** (1 / 3)
    try:
        machine = node(name, cluster.link_gbits / 8 * 1e9, efficiency, cluster.gpus_per_node)
    except LookupError as error:
        raise Refusal("memory", f"{name} cannot be planned: {error}") from None
    gpu = accelerator(name)
    if scenario.training is not None and scenario.training.precision == "fp8":
        if "fp8" not in gpu.rates:
            raise Refusal("memory", f"{gpu.name} has no fp8 arithmetic, and training.precision = 'fp8'")
        machine = replace(machine, product_flops=efficiency * gpu.rate("fp8"))
    kernels = KernelCosts(gpu.name, Assumptions(cluster.attention, power=cluster.power_limit, speed=cluster.speed))
    if cluster.efficiency is None and kernels.have(scenario.trained, machine):
        return machine, kernels
    return machine, Rates


def least_gpu_seconds(scenario: Scenario, name: str) -> float:
    """Return the GPU-seconds of a step that waits for nothing and computes nothing twice. No plan needs fewer."""
    training = scenario.training
    assert training is not None
    machine, costs_of = _machine(scenario, name)
    model = scenario.trained
    costs = costs_of(model, machine, Plan(1, training.sequence))
    return training.batch * (model.layers * (costs.forward + costs.backward) + costs.head)


def _why_nothing_fits(scenario: Scenario, machine: Machine, costs_of: CostsOf, gpu: Accelerator) -> str:
    training = scenario.training
    cluster = scenario.cluster
    model = scenario.trained
    assert training is not None
    endless = replace(machine, memory_bytes=math.inf)
    any_size = _parallelisms(model, endless, costs_of, cluster.gpus, training.batch, training.sequence)
    if not any_size:
        return (
            f"a batch of {training.batch} sequences of {training.sequence} tokens cannot be divided among "
            f"{cluster.gpus} GPUs, and the model does not fit on fewer"
        )
    leanest = min(max(rank.total for rank in memory(model, step.plan)) for step in any_size)
    usable = ALLOCATED_SHARE * machine.memory_bytes
    return (
        f"the model does not fit: on {cluster.gpus} GPUs the leanest of {len(any_size)} parallelisms needs "
        f"{readable_bytes(leanest)} per GPU, and {readable_bytes(usable)} of a {gpu.name} can be used"
    )
