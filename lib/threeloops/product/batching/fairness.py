"""Fairness between clients: the virtual token counter of Sheng et al. 2024, "Fairness in Serving Large Language Models"
(section 4, algorithm 2).

Each client has a counter of the service that it received, and the client with the lowest counter is admitted next. So a
client who asks for more than its share waits behind its own requests, not in front of others'. If only one client asks,
it gets everything. When a client returns, its counter is raised to the lowest counter of those who wait, so that nobody
can save up service.
"""

from collections import defaultdict
from collections.abc import Iterable

__all__ = ["TokenCounters"]


class TokenCounters:
    """Service that each client had: `prompt` per token of a prompt that was computed, and `output` per new token.

    The paper has w_p = 1 and w_q = 2, after the prices of the time.
    """

    def __init__(self, prompt: float = 1.0, output: float = 2.0):
        self.prompt = prompt
        self.output = output
        self._service: defaultdict[str, float] = defaultdict(float)
        self._last = ""  # the client whose request was the last to be admitted

    def service(self, client: str) -> float:
        return self._service[client]

    def join(self, client: str, waiting: Iterable[str]) -> None:
        """Note that a request of `client` is about to wait behind those of the clients `waiting`."""
        least = min(map(self.service, set(waiting)), default=self.service(self._last))
        self._service[client] = max(self.service(client), least)  # changes nothing for a client who waits already

    def admit(self, client: str, tokens: int) -> None:
        """Charge the client of an admitted request for `tokens` of its prompt, which are to be computed."""
        self._service[client] += self.prompt * tokens
        self._last = client

    def generate(self, client: str, tokens: int) -> None:
        self._service[client] += self.output * tokens
