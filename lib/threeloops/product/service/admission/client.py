"""A client, and the limits of its requests."""

import math
from dataclasses import dataclass, field, fields

__all__ = ["Client", "ClientLimits"]


@dataclass(frozen=True)
class ClientLimits:
    """The limits of one client. Infinity, the default, means no limit. Raises ValueError naming a field out of range.

    A request costs one request, and as many tokens as its prompt and `max_tokens` together. That is what it may use,
    because nobody knows yet what it will use. OpenAI counts the same way.
    """

    requests_per_second: float = math.inf
    request_burst: float = 10
    tokens_per_second: float = math.inf
    token_burst: float = 10_000
    concurrent: float = math.inf  # requests that run or are queued

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            least = 0 if limit.name.endswith("per_second") else 1
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
                raise ValueError(f"{limit.name} = {value!r}: expected a number, at least {least}")
            if value == math.inf and limit.name.endswith("burst"):
                raise ValueError(
                    f"{limit.name} = inf: such a bucket never empties; leave the rate without a limit instead"
                )


@dataclass(frozen=True)
class Client:
    """`admin` may switch models."""

    name: str
    limits: ClientLimits = field(default_factory=ClientLimits)
    admin: bool = False
