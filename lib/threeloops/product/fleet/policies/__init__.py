"""Policies of a fleet, as pure functions and data: the number of replicas, routing, and probes.

The simulation (`threeloops.product.fleet`) and the real replicas (`threeloops.product.fleet.real`) use the same
policies.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.fleet.policies.autoscaler import Autoscaler, Decision, History, Rate, ScalingRules, State
    from threeloops.product.fleet.policies.probes import Kubelet, Probe, ProbeEvent, Probes, Respond, probe_timeline
    from threeloops.product.fleet.policies.routing import (
        Load,
        Router,
        least_outstanding,
        prefix_aware,
        prefix_key,
        round_robin,
        two_choices,
    )
else:
    import_on_demand(__name__)

__all__ = [
    "Autoscaler", "Decision", "History", "Kubelet", "Load", "Probe", "ProbeEvent", "Probes", "Rate", "Respond",
    "Router", "ScalingRules", "State", "least_outstanding", "prefix_aware", "prefix_key", "probe_timeline",
    "round_robin", "two_choices",
]  # fmt: skip
