"""A deployment as data: the two pools, the cost of their steps, how caches travel, and who decides."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from threeloops.product.batching.policy import Policy
from threeloops.product.batching.simulated.steps import Cost
from threeloops.product.disaggregated.policies.ratio import RoleChanges
from threeloops.product.disaggregated.policies.routing import (
    DecodeRouter,
    PrefillRouter,
    fewest_running,
    shortest_queue,
)
from threeloops.product.disaggregated.policies.tiers import Eviction, Tier, lru
from threeloops.product.disaggregated.transfer import Handover
from threeloops.units import require_whole

__all__ = ["Deployment", "MachineFailure", "Pool", "Role"]

Role = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Pool:
    """A number of `machines` of one kind. Each has a cache of `blocks`, and `policy` limits its steps."""

    machines: int
    policy: Policy = field(default_factory=Policy)
    blocks: int = 4096

    def __post_init__(self) -> None:
        require_whole(0, of="machines", machines=self.machines)
        require_whole(blocks=self.blocks)


@dataclass(frozen=True)
class MachineFailure:
    """A failure of machine number `victim` of a pool, counted around the list, at `at` seconds. It loses its cache, and
    is back after `restart` seconds. Infinity means never."""

    at: float
    pool: Role
    victim: int = 0
    restart: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.at < math.inf or self.pool not in get_args(Role) or not self.restart >= 0:
            raise ValueError(f"{self}: expected seconds from the beginning, 'prefill' or 'decode', and a restart ≥ 0")


@dataclass(frozen=True)
class Deployment:
    """Machines that compute prompts, machines that continue answers, and what is between them.

    Without prefill machines, every request is computed where it decodes: that is an aggregated deployment, to compare
    with.

    Args:
        cost: seconds of a step, for machines of both kinds.
        handover: how the cache of a prompt travels.
        local_below: prompts of fewer tokens are computed where they decode. Moving their cache is not worth it.
        store: tiers below the machines' own caches, which all prefill machines share. They keep a copy of every full
            block of a prompt that was computed. Blocks are loaded from there if that is faster than computing them.
        eviction: which block leaves a tier of the store first.
        roles: the rule by which machines change their roles, if they do.
        tries: how often a request is begun before it ends with an error, because machines with its cache failed.
    """

    cost: Cost
    handover: Handover
    prefill: Pool
    decode: Pool
    block_size: int = 16
    prefill_router: PrefillRouter = shortest_queue
    decode_router: DecodeRouter = fewest_running
    local_below: int = 0
    store: tuple[Tier, ...] = ()
    eviction: Eviction = lru
    roles: RoleChanges | None = None
    failures: tuple[MachineFailure, ...] = ()
    tries: int = 3

    def __post_init__(self) -> None:
        require_whole(block_size=self.block_size, tries=self.tries)
        require_whole(0, of="tokens", local_below=self.local_below)
        if not self.decode.machines:
            raise ValueError("decode.machines = 0: expected at least one machine that continues answers")
        if self.roles is not None and not self.prefill.machines:
            raise ValueError("roles without prefill machines: expected at least one machine of each kind")

    def pool(self, role: Role) -> Pool:
        return self.prefill if role == "prefill" else self.decode
