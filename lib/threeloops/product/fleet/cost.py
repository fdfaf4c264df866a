"""The cost of a fleet: replica-seconds, a price per hour, and the tokens that were served.

The denominator counts served tokens. Tokens of failed tries were computed and paid for, but nobody received them.
Tokens of requests that missed the SLO came late. So compare two fleets by the cost per million tokens *within the SLO*.
By the cost per served token, a fleet that is too small is always the cheapest.
"""

import math
from dataclasses import dataclass

from threeloops.product.fleet.record import FleetRun
from threeloops.product.loadgen.metrics import SLO

__all__ = ["Cost", "Price", "cost_of", "cost_per_million"]


@dataclass(frozen=True)
class Price:
    """The price of one replica per hour. A price means nothing without its source and date, so both are required."""

    per_hour: float
    source: str
    date: str
    currency: str = "USD"

    def __post_init__(self) -> None:
        if not 0 < self.per_hour < math.inf:
            raise ValueError(f"per_hour = {self.per_hour!r}: expected the price of a replica's hour, above 0")
        if not self.source or not self.date:
            raise ValueError(
                f"source = {self.source!r}, date = {self.date!r}: expected the source of the price, and its date"
            )


@dataclass(frozen=True)
class Cost:
    """The cost of a run, in the price's currency."""

    price: Price
    replica_seconds: float
    output_tokens: int
    tokens_within_slo: int
    attainment: float
    """Share of requests that met the SLO."""
    utilisation: float
    """Share of the paid time in which the devices computed. A step counts the same for one request as for many, so this
    can be near 1 at a low load too."""

    @property
    def total(self) -> float:
        return self.replica_seconds / 3600 * self.price.per_hour

    @property
    def per_million(self) -> float:
        """The cost per million output tokens that were served."""
        return cost_per_million(self.replica_seconds, self.output_tokens, self.price.per_hour)

    @property
    def per_million_within_slo(self) -> float:
        return cost_per_million(self.replica_seconds, self.tokens_within_slo, self.price.per_hour)


def cost_per_million(replica_seconds: float, output_tokens: float, per_hour: float) -> float:
    """Return the cost of a million output tokens, if `output_tokens` took `replica_seconds` at this price per
    replica-hour, or infinity if nothing was served. Raises ValueError for a negative quantity."""
    for name, value in (("replica_seconds", replica_seconds), ("output_tokens", output_tokens), ("per_hour", per_hour)):
        if not value >= 0:
            raise ValueError(f"{name} = {value!r}: expected at least 0")
    return replica_seconds / 3600 * per_hour / output_tokens * 1e6 if output_tokens else math.inf


def cost_of(run: FleetRun, price: Price, slo: SLO) -> Cost:
    within = sum(outcome.output_tokens for outcome in run.answered if outcome.meets(slo))
    seconds = run.replica_seconds
    utilisation = run.busy_seconds / seconds if seconds else math.nan
    return Cost(price, seconds, run.output_tokens, within, run.attainment(slo), utilisation)
