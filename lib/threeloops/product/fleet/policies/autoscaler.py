"""Choose the number of replicas: Kubernetes' HorizontalPodAutoscaler, and KEDA's step to and from zero.

Every 15 seconds the autoscaler goes through four steps.

1. The rule: ceil(ready replicas · mean metric / target), unless the ratio is within the tolerance of 1. Replicas that
   are not ready yet count as idle if the rule asks for more. Replicas without a metric count as the value that makes
   the change smaller: as idle on the way up, as exactly on target on the way down.
2. Stabilisation: the lowest recommendation of the window for scaling up, the highest of the window for scaling down.
3. Rates: at most a number or a percentage of replicas within a period.
4. The minimum and the maximum.

With `minimum=0` the last replica stops once nothing has been active for `cooldown` seconds, and the first one starts
again as soon as something is. An HPA cannot do that with a metric of its pods, because without pods there is no metric.
KEDA does it with a metric of the whole service. (With a minimum of 1 or more, Kubernetes takes 0 replicas for a pause
that the operator wants. Here the minimum is restored.)

Sources: Kubernetes' documentation, "Horizontal Pod Autoscaling", sections "Algorithm details" and "Configurable scaling
behavior", whose defaults (autoscaling/v2) are the defaults here, and its `replica_calculator.go` for the order of the
exceptions; KEDA's documentation, "Scaling Deployments" and "ScaledObject specification".
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

__all__ = ["Autoscaler", "Decision", "History", "Rate", "ScalingRules", "State"]


@dataclass(frozen=True)
class Rate:
    """A limit of `value` replicas, or `value` per cent of them, within `seconds` (HPAScalingPolicy)."""

    value: float
    unit: Literal["replicas", "percent"]
    seconds: float

    def __post_init__(self) -> None:
        if self.unit not in ("replicas", "percent"):
            raise ValueError(f"unit = {self.unit!r}: expected 'replicas' or 'percent'")
        if not (0 < self.value < math.inf and 0 < self.seconds < math.inf):
            raise ValueError(
                f"value = {self.value!r}, seconds = {self.seconds!r}: expected a change and a period above 0; "
                "select='disabled' forbids a direction"
            )

    def __str__(self) -> str:
        return f"{self.value:g}{'%' if self.unit == 'percent' else ' replicas'} in {self.seconds:g} s"


@dataclass(frozen=True)
class ScalingRules:
    """Stabilisation window in seconds and rates of one direction (HPAScalingRules).

    `select` says which rate counts if there are several: "max" the one that allows the largest change, "min" the
    smallest; "disabled" never scales in this direction. Without rates only the window limits it.
    """

    window: float = 0.0
    rates: tuple[Rate, ...] = ()
    select: Literal["max", "min", "disabled"] = "max"

    def __post_init__(self) -> None:
        if not 0 <= self.window < math.inf:
            raise ValueError(f"window = {self.window!r}: expected seconds, at least 0")
        if self.select not in ("max", "min", "disabled"):
            raise ValueError(f"select = {self.select!r}: expected 'max', 'min' or 'disabled'")


@dataclass(frozen=True)
class History:
    """The autoscaler's memory: recommendations as (seconds, replicas), changes as (seconds, ± replicas), and when
    something was active last."""

    recommendations: tuple[tuple[float, int], ...] = ()
    changes: tuple[tuple[float, int], ...] = ()
    active: float = -math.inf


@dataclass(frozen=True)
class State:
    """The observations of the autoscaler.

    `replicas` is the number that it has asked for so far, including those that start and excluding those that drain.
    `metrics` has one entry for each ready replica: its metric, or None if it did not answer. `total` is the metric of
    the whole service, which exists even without replicas, such as the number of waiting requests.
    """

    replicas: int
    metrics: tuple[float | None, ...] = ()
    total: float = 0.0
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        if not 0 <= len(self.metrics) <= self.replicas:
            raise ValueError(
                f"{len(self.metrics)} metrics of {self.replicas} replicas: expected at most one for each, and none for "
                "a replica that drains"
            )


@dataclass(frozen=True)
class Decision:
    """The desired number of replicas, the reason, and the `State.history` of the next call."""

    desired: int
    reason: str
    history: History


@dataclass(frozen=True)
class Autoscaler:
    """Kubernetes' autoscaler for one metric, as data; `decide` has no side effects.

    `target` is the metric that each replica should have. `activation` and `cooldown` matter with `minimum=0` only.
    Raises ValueError naming the setting that is out of range.
    """

    target: float
    minimum: int = 1
    maximum: int = 10
    tolerance: float = 0.1
    up: ScalingRules = ScalingRules(0, (Rate(100, "percent", 15), Rate(4, "replicas", 15)))
    down: ScalingRules = ScalingRules(300, (Rate(100, "percent", 15),))
    activation: float = 0.0
    cooldown: float = 300.0

    def __post_init__(self) -> None:
        if not 0 < self.target < math.inf:
            raise ValueError(f"target = {self.target!r}: expected the metric that a replica should have, above 0")
        if not 0 <= self.minimum <= self.maximum or self.maximum < 1:
            raise ValueError(
                f"minimum = {self.minimum!r}, maximum = {self.maximum!r}: expected 0 ≤ minimum ≤ maximum, and at least "
                "one replica as the maximum"
            )
        for name in ("tolerance", "activation", "cooldown"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)!r}: expected a number, at least 0")

    def decide(self, now: float, state: State) -> Decision:
        """How many replicas there should be at `now`, in seconds on any clock that does not step back."""
        history = state.history
        if max(state.total, sum(metric or 0.0 for metric in state.metrics)) > self.activation:
            history = replace(history, active=now)
        if (decision := self._from_or_to_zero(now, state, history)) is not None:
            return decision
        if not self.minimum <= state.replicas <= self.maximum:
            desired = min(self.maximum, max(self.minimum, state.replicas))
            return self._decision(now, state, history, desired, f"{state.replicas} is outside the limits")
        desired, reason = self._rule(state)
        before = history.recommendations or ((now, state.replicas),)  # what is there was somebody's recommendation
        longest = max(self.up.window, self.down.window)
        recent = tuple(recommendation for recommendation in before if recommendation[0] > now - longest)
        history = replace(history, recommendations=(*recent, (now, desired)))
        desired, reason = self._stabilised(now, state, history, desired, reason)
        desired, reason = self._limited(now, state, history, desired, reason)
        return self._decision(now, state, history, desired, reason)

    def _from_or_to_zero(self, now: float, state: State, history: History) -> Decision | None:
        """Decide on scaling from or to zero. Returns None if the ordinary rule decides."""
        if state.replicas == 0:
            if self.minimum or history.active < now:
                return self._decision(now, state, history, self.minimum, "the minimum")
            why = f"{state.total:g} in all is above the activation of {self.activation:g}"
            return self._decision(now, state, history, 1, why)
        if self.minimum:
            return None
        if history.active == -math.inf:  # the cooldown begins when the autoscaler first sees the replicas
            return self._decision(now, state, replace(history, active=now), state.replicas, "the cooldown begins")
        if (idle := now - history.active) >= self.cooldown:
            return self._decision(now, state, history, 0, f"nothing was active for {idle:.0f} s")
        return None

    def _rule(self, state: State) -> tuple[int, str]:
        """Step 1: the number that the metrics ask for."""
        readings = [metric for metric in state.metrics if metric is not None]
        if not readings:
            return state.replicas, "no ready replica has a metric"
        mean = sum(readings) / len(readings)
        ratio = mean / self.target
        reason = f"mean {mean:.3g} of a target of {self.target:g} over {len(readings)} ready"
        unready = state.replicas - len(state.metrics) if ratio > 1 else 0
        missing = len(state.metrics) - len(readings)
        if not unready and not missing:
            if abs(ratio - 1) <= self.tolerance:
                return state.replicas, f"{reason}: within the tolerance"
            return _ceil(ratio * len(readings)), reason
        assumed = missing * self.target if ratio < 1 else 0.0  # the others that are set aside count as idle
        counted = len(readings) + missing + unready
        damped = (sum(readings) + assumed) / counted / self.target
        reason += "".join(f", {count} {what}" for count, what in ((unready, "starting"), (missing, "silent")) if count)
        desired = _ceil(damped * counted)
        if abs(damped - 1) <= self.tolerance:
            return state.replicas, f"{reason}: within the tolerance"
        if (damped - 1) * (ratio - 1) < 0 or (desired - state.replicas) * (ratio - 1) < 0:
            return state.replicas, f"{reason}: counting them would turn the direction"
        return desired, reason

    def _stabilised(self, now: float, state: State, history: History, desired: int, reason: str) -> tuple[int, str]:
        """Step 2: only as far as every recommendation of the window agrees."""
        recommendations = history.recommendations
        lowest = min([desired, *(replicas for at, replicas in recommendations if at > now - self.up.window)])
        highest = max([desired, *(replicas for at, replicas in recommendations if at > now - self.down.window)])
        stable = min(max(state.replicas, lowest), highest)
        if stable == desired:
            return desired, reason
        window = self.up.window if desired > stable else self.down.window
        return stable, f"{reason}, which asks for {desired}; stabilised over {window:g} s"

    def _limited(self, now: float, state: State, history: History, desired: int, reason: str) -> tuple[int, str]:
        """Steps 3 and 4."""
        current = state.replicas
        if desired == current:
            return desired, reason
        rules, sign = (self.up, 1) if desired > current else (self.down, -1)
        if rules.select == "disabled":
            return current, f"{reason}, which asks for {desired}; scaling {'up' if sign > 0 else 'down'} is disabled"
        reached = {rate: _reachable(rate, sign, now, current, history) for rate in rules.rates}
        if reached:
            farthest = rules.select == "max"
            rate = max(reached, key=lambda rate: reached[rate] * sign * (1 if farthest else -1))
            limit = max(reached[rate], current) if sign > 0 else min(reached[rate], current)
            if (desired - limit) * sign > 0:
                desired, reason = limit, f"{reason}, which asks for {desired}; at most {rate}"
        bounded = min(self.maximum, max(self.minimum, 1, desired))  # the step to 0 is not the rule's
        if bounded != desired:
            reason = f"{reason}, which asks for {desired}; the {'maximum' if bounded < desired else 'minimum'}"
        return bounded, reason

    def _decision(self, now: float, state: State, history: History, desired: int, reason: str) -> Decision:
        rates = (*self.up.rates, *self.down.rates)
        longest = max((rate.seconds for rate in rates), default=0.0)
        changes = tuple(change for change in history.changes if change[0] > now - longest)
        if desired != state.replicas:
            changes += ((now, desired - state.replicas),)
        return Decision(desired, reason, replace(history, changes=changes))


def _ceil(number: float) -> int:
    """Round up to the next whole number, except for an excess that is only rounding: 3 · 0.1 / 0.1 is 3."""
    return math.ceil(number - 1e-9 * max(1.0, number))


def _reachable(rate: Rate, sign: int, now: float, current: int, history: History) -> int:
    """How far this rate lets the replicas go in the direction of `sign`, from as many as there were a period ago."""
    before = current - sum(change for at, change in history.changes if at > now - rate.seconds)
    if rate.unit == "replicas":
        return before + sign * int(rate.value)
    share = 1 + sign * rate.value / 100
    return _ceil(before * share) if sign > 0 else math.floor(before * share + 1e-9)
