"""The record of a simulated deployment: every request's way through it, and what each machine did."""

import math
from dataclasses import dataclass, field
from functools import cached_property

from threeloops.product.disaggregated.policies.tiers import TieredCache
from threeloops.product.loadgen.metrics import SLO, Metrics, measure
from threeloops.product.request import Request

__all__ = ["DisaggregatedRun", "Journey", "MachineLife"]


@dataclass(eq=False)
class Journey:
    """One request's way. Times are seconds, and NaN if the event never came; they are those of the last try.

    `request` has the tokens' times and the end, as its client sees them. The transfer sent `bytes` in `messages`, all
    tries together. `loaded_tokens` came from the store, and `cached_tokens` were in the prefill machine's cache when
    the prompt was begun, including those.
    """

    request: Request
    prefill: str = ""
    decode: str = ""
    tries: int = 0
    begun: float = math.nan
    """The moment when the first step with its prompt began."""
    computed: float = math.nan
    """The moment when the last step with its prompt ended, which is that of its first token."""
    placed: float = math.nan
    """The moment when a decode machine had reserved blocks for it."""
    arrived: float = math.nan
    """The moment when the last byte of its cache had arrived."""
    bytes: float = 0.0
    messages: int = 0
    cached_tokens: int = 0
    loaded_tokens: int = 0

    def reset(self) -> None:
        """Begin another try."""
        self.tries += 1
        self.prefill = ""
        self.decode = ""
        self.begun = self.computed = self.placed = self.arrived = math.nan
        self.cached_tokens = 0
        self.loaded_tokens = 0

    @property
    def exposed(self) -> float:
        """The seconds between the end of its prompt and the arrival of its cache."""
        return self.arrived - self.computed


@dataclass(eq=False)
class MachineLife:
    """The life of one machine. `roles` has the moments from which it had a role: "prefill", "decode", or "" (away)."""

    name: str
    roles: list[tuple[float, str]] = field(default_factory=list)
    busy: float = 0.0
    """Seconds in which its device computed."""
    steps: int = 0
    failures: int = 0


@dataclass(frozen=True)
class DisaggregatedRun:
    """The whole record, of `seconds` in virtual time."""

    seconds: float
    journeys: tuple[Journey, ...]
    machines: tuple[MachineLife, ...]
    store: TieredCache | None = None

    @cached_property
    def requests(self) -> list[Request]:
        """Return the requests as their clients see them, in the order of arrival."""
        return [journey.request for journey in self.journeys]

    @property
    def errors(self) -> list[str]:
        return [request.error for request in self.requests if request.error]

    @property
    def transferred(self) -> tuple[Journey, ...]:
        """The requests whose cache was moved."""
        return tuple(journey for journey in self.journeys if not math.isnan(journey.arrived))

    def metrics(self, slo: SLO | None = None) -> Metrics:
        return measure(self.requests, slo)
