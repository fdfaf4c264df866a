"""The reason why a scenario cannot be planned as it is, and the smallest change that would make it possible."""

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Infeasible", "Problem", "Proposal", "Refusal"]

Problem = Literal["memory", "failures", "deadline", "tpot", "slo", "budget", "price"]


class Refusal(Exception):
    """One accelerator cannot meet the requirements. It has the first problem that was found. `excess` compares
    accelerators with the same problem: by which factor it is too much or too late."""

    def __init__(self, problem: Problem, message: str, excess: float = math.inf):
        super().__init__(message)
        self.problem = problem
        self.message = message
        self.excess = excess


@dataclass(frozen=True)
class Proposal:
    """Keys of the scenario with the values that would make it feasible; the first is as small a change as will do."""

    changes: tuple[tuple[str, float | str], ...]
    text: str


class Infeasible(ValueError):
    """No accelerator of the scenario can meet the requirements. `proposals` were found and checked with the same
    models."""

    def __init__(self, problem: Problem, reason: str, proposals: tuple[Proposal, ...]):
        ways = "; or ".join(proposal.text for proposal in proposals)
        super().__init__(f"{reason}. " + (f"It would do with {ways}." if ways else "No single change would do."))
        self.problem = problem
        self.reason = reason
        self.proposals = proposals
