"""Many replicas of a service: how many, which one answers, what happens when one dies, and the cost.

>>> day = bursty_day(peak=12, seconds=7200, seed=1)                    # two hours shaped like a day
>>> arrivals = day.arrivals(uniform(100, 300), uniform(50, 150), seed=2)
>>> model = shared_model(RooflineCost(config, accelerator("H100")), seats=32, prompt=200, output=100)
>>> autoscaler = Autoscaler(target=16, minimum=1, maximum=12)          # 16 outstanding requests per replica
>>> cold = ColdStart(pull=30, load=60, warm_up=15)
>>> probes = Probes(startup=Probe("/ready", failure_threshold=30), readiness=Probe("/ready"), liveness=Probe("/health"))
>>> run = simulate(arrivals, Fleet(model, 2, autoscaler, cold_start=cold, probes=probes), seed=3)
>>> run.ttft.p99, run.errors, run.replica_seconds, run.reversals
>>> run.columns()["ready"], run.p95()                                  # arrays to draw; run.samples have the reasons
>>> cost_of(run, Price(2.5, source="…", date="…"), SLO(ttft=1.0)).per_million

`policies/` decides. The simulation carries the decisions out in virtual time, and `threeloops.product.fleet.real`
carries them out on processes of this machine behind NGINX. `EngineModel` is the course's own engine, step by step.
`SharedModel` is a formula for long runs, and `flow` computes a whole day without single requests.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.fleet.cost import Cost, Price, cost_of, cost_per_million
    from threeloops.product.fleet.demand import Demand, bursty_day
    from threeloops.product.fleet.description import ColdStart, Failure, Fleet, Retries
    from threeloops.product.fleet.fluid import Flow, flow
    from threeloops.product.fleet.policies import (
        Autoscaler,
        Decision,
        History,
        Kubelet,
        Load,
        Probe,
        ProbeEvent,
        Probes,
        Rate,
        Router,
        ScalingRules,
        State,
        least_outstanding,
        prefix_aware,
        prefix_key,
        probe_timeline,
        round_robin,
        two_choices,
    )
    from threeloops.product.fleet.record import FleetRun, Life, Outcome, Sample
    from threeloops.product.fleet.servers import EngineModel, SharedModel, shared_model
    from threeloops.product.fleet.simulation import simulate
else:
    import_on_demand(__name__)

__all__ = [
    "Autoscaler", "ColdStart", "Cost", "Decision", "Demand", "EngineModel", "Failure", "Fleet", "FleetRun", "Flow",
    "History", "Kubelet", "Life", "Load", "Outcome", "Price", "Probe", "ProbeEvent", "Probes", "Rate", "Retries",
    "Router", "Sample", "ScalingRules", "SharedModel", "State", "bursty_day", "cost_of", "cost_per_million", "flow",
    "least_outstanding", "prefix_aware", "prefix_key", "probe_timeline", "round_robin", "shared_model", "simulate",
    "two_choices",
]  # fmt: skip
