"""A plan: how a training step is cut, and on which machine it runs."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from threeloops.training.collectives import Link
from threeloops.training.mesh import Mesh
from threeloops.training.planning.model import Recompute, Transformer

__all__ = ["Machine", "Plan"]


@dataclass(frozen=True)
class Machine:
    """Nodes of equal GPUs, each GPU with a link to the others of its node and one to other nodes."""

    gpus_per_node: int
    memory_bytes: float
    """The memory of one GPU."""
    flops: float
    """Dense 16-bit FLOP/s that kernels reach when nothing is waited for: a share of the data sheet's number."""
    peak_flops: float
    """The data sheet's number, which MFU is relative to."""
    inside: Link
    between: Link
    """The link between nodes, per GPU and per direction."""
    neighbours: int = 0
    """The number of links of a GPU in a mesh without switches, each to a neighbour of its own. `inside` is one of them,
    and a ring over n GPUs uses n − 1 at once. 0: `inside` leads to every GPU of the node."""
    bridge: Link | None = None
    """The link between the two cards of a pair, if pairs have one of their own."""
    product_flops: float | None = None
    """Dense FLOP/s of the matmuls with weights, if they run in a smaller type than 16 bits."""

    def spread(self, ranks: range) -> tuple[int, int]:
        """Return the number of nodes that hold these ranks, and the most of them that a node holds."""
        nodes = len({rank // self.gpus_per_node for rank in ranks})
        return nodes, -(-len(ranks) // nodes)

    def link(self, ranks: range) -> Link:
        """Return the link of a ring over these ranks. Several ranks of a node use their links to other nodes together,
        like NCCL's channels, and a message passes between nodes once per node."""
        nodes, per_node = self.spread(ranks)
        if nodes == 1:
            return self._within(ranks)
        latency = (self.between.latency * nodes + self.inside.latency * (len(ranks) - nodes)) / len(ranks)
        own = self._within(ranks[:per_node]).bandwidth if per_node > 1 else math.inf
        return Link(latency, min(own, self.between.bandwidth * per_node))

    def _within(self, ranks: range) -> Link:
        """Return the link of a ring inside a node."""
        if self.bridge is not None and len(ranks) == 2 and ranks.step == 1:
            return self.bridge
        lanes = max(1, min(len(ranks) - 1, self.neighbours))
        return Link(self.inside.latency, self.inside.bandwidth * lanes)

    def exchange(self, ranks: range, size: float) -> float:
        """Return the seconds of an all-to-all in which each of these ranks sends `size` bytes, its own part included.

        Each GPU sends to other nodes through its own link, and to its node's GPUs at the same time.
        """
        if len(ranks) == 1:
            return 0.0
        nodes, per_node = self.spread(ranks)
        near = self._within(ranks[:per_node])
        inside = near.latency + (per_node - 1) / len(ranks) * size / near.bandwidth if per_node > 1 else 0.0
        outside = self.between.latency + (1 - 1 / nodes) * size / self.between.bandwidth if nodes > 1 else 0.0
        return max(inside, outside)


@dataclass(frozen=True)
class Plan:
    """The lengths of the axes, and the settings of one step.

    `batch` counts sequences of all ranks. Gradients are reduced and accumulated in float32. Stages of ZeRO work over dp
    and cp together: stage 1 shards masters and optimizer states, 2 also the gradients, 3 also the parameters (FSDP).
    Stages 2 and 3 reduce gradients after the backward of each microbatch (DeepSpeed, FSDP). In a pipeline, torch's
    schedules gather a rank's parameters once per step and scatter its gradients once, so gradients stay whole until
    then, for stages 2 and 3 as for stage 1. Tensor parallelism includes sequence parallelism, and cuts head and loss
    along the vocabulary. Expert parallelism divides the experts among `ep` of the ranks over dp and cp.
    """

    batch: int
    sequence: int
    dp: int = 1
    cp: int = 1
    pp: int = 1
    tp: int = 1
    microbatch: int = 1
    """Sequences."""
    chunks: int = 1
    """Model chunks per rank: 1 is 1F1B, more is interleaved 1F1B."""
    zero: Literal[0, 1, 2, 3] = 1
    recompute: Recompute = "none"
    ep: int = 1
    loss_chunks: int = 1
    """Parts in which head and loss are computed, one after the other, so that logits take less memory."""

    def __post_init__(self) -> None:
        for name in ("batch", "sequence", "dp", "cp", "pp", "tp", "microbatch", "chunks", "ep", "loss_chunks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: expected 1 or more")
        if self.batch % (self.dp * self.microbatch):
            raise ValueError(
                f"batch = {self.batch}: expected a multiple of dp · microbatch = {self.dp} · {self.microbatch}"
            )
        if self.sequence % (self.cp * self.tp):
            raise ValueError(f"sequence = {self.sequence}: expected a multiple of cp · tp = {self.cp} · {self.tp}")
        if self.replicas % self.ep:
            raise ValueError(f"ep = {self.ep}: expected a divisor of dp · cp = {self.replicas}")
        if self.chunks > 1 and (self.pp == 1 or self.microbatches % self.pp):
            raise ValueError(
                f"{self.chunks} chunks with pp = {self.pp} and {self.microbatches} microbatches: the interleaved "
                "schedule needs pp ≥ 2, and microbatches that are a multiple of it"
            )

    @property
    def mesh(self) -> Mesh:
        """The mesh, with tensor parallelism innermost, then context, data, and pipeline parallelism: the order
        of how much each sends. (Llama 3 has pp inside dp. If a node holds tp and everything else is between nodes, both
        cost the same.)"""
        return Mesh(pp=self.pp, dp=self.dp, cp=self.cp, tp=self.tp)

    @cached_property
    def groups(self) -> dict[str, range]:
        """The first group of ranks along each axis of `mesh`, of the replicas over dp and cp, of those that share the
        experts, and of those that have the same ones."""
        inner = self.tp * self.replicas
        return {
            "tp": range(self.tp),
            "cp": range(0, self.tp * self.cp, self.tp),
            "replicas": range(0, inner, self.tp),
            "ep": range(0, self.tp * self.ep, self.tp),
            "expert replicas": range(0, inner, self.tp * self.ep),
            "pp": range(0, inner * self.pp, inner),
        }

    @property
    def gpus(self) -> int:
        return self.dp * self.cp * self.pp * self.tp

    @property
    def microbatches(self) -> int:
        return self.batch // (self.dp * self.microbatch)

    @property
    def tokens(self) -> int:
        """The tokens of one microbatch on one rank, before tensor parallelism cuts them."""
        return self.microbatch * self.sequence // self.cp

    @property
    def replicas(self) -> int:
        """Ranks with the same part of the model, over which ZeRO shards."""
        return self.dp * self.cp

    @property
    def accumulates_whole(self) -> bool:
        """Whether a rank keeps whole gradients between microbatches: without ZeRO-2 or 3, or in a pipeline."""
        return self.zero < 2 or self.pp > 1

    def layers(self, model: Transformer) -> list[int]:
        """Layers of each pipeline rank. First and last get no more than others, for they have embedding and head.

        Raises:
            ValueError: the model cannot be cut so.
        """
        if self.pp * self.chunks > model.layers:
            raise ValueError(f"pp · chunks = {self.pp} · {self.chunks}: expected at most {model.layers}, one per layer")
        if model.kv_heads % self.tp:
            raise ValueError(f"tp = {self.tp}: expected a divisor of {model.kv_heads} heads of keys and values")
        if max(1, model.experts) % self.ep:
            raise ValueError(f"ep = {self.ep}: expected a divisor of experts = {model.experts}")
        base, extra = divmod(model.layers, self.pp)
        order = [*range(1, self.pp - 1), 0, self.pp - 1]
        return [base + (rank in order[:extra]) for rank in range(self.pp)]

    def in_flight(self, rank: int) -> float:
        """Microbatches whose activations this pipeline rank keeps at most, each counted as a whole of its layers."""
        ahead = self.pp - rank - 1
        if self.chunks == 1:
            return min(ahead + 1, self.microbatches)
        return min(2 * ahead + (self.chunks - 1) * self.pp + 1, self.microbatches * self.chunks) / self.chunks
