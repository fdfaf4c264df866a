"""A plan: how a training step is cut, and on which machine it runs."""

from dataclasses import dataclass
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

    def link(self, ranks: range) -> Link:
        """Return the link of a ring over these ranks. Several ranks of a node use their links to other nodes together,
        like NCCL's channels, and a message passes between nodes once per node."""
        nodes = len({rank // self.gpus_per_node for rank in ranks})
        if nodes == 1:
            return self.inside
        per_node = -(-len(ranks) // nodes)
        latency = (self.between.latency * nodes + self.inside.latency * (len(ranks) - nodes)) / len(ranks)
        return Link(latency, min(self.inside.bandwidth, self.between.bandwidth * per_node))


@dataclass(frozen=True)
class Plan:
    """The lengths of the axes, and the settings of one step.

    `batch` counts sequences of all ranks. Gradients are reduced and accumulated in float32. Stages of ZeRO work over dp
    and cp together: stage 1 shards masters and optimizer states, 2 also the gradients, 3 also the parameters (FSDP). In
    a pipeline FSDP gathers a rank's parameters once per step, and scatters its gradients once, as torch's schedules do.
    Tensor parallelism includes sequence parallelism, and cuts head and loss along the vocabulary.
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

    def __post_init__(self) -> None:
        for name in ("batch", "sequence", "dp", "cp", "pp", "tp", "microbatch", "chunks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: expected 1 or more")
        if self.batch % (self.dp * self.microbatch):
            raise ValueError(
                f"batch = {self.batch}: expected a multiple of dp · microbatch = {self.dp} · {self.microbatch}"
            )
        if self.sequence % (self.cp * self.tp):
            raise ValueError(f"sequence = {self.sequence}: expected a multiple of cp · tp = {self.cp} · {self.tp}")
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

    @property
    def groups(self) -> dict[str, range]:
        """The first group of ranks along each axis of `mesh`, and of the replicas over dp and cp."""
        inner = self.tp * self.replicas
        return {
            "tp": range(self.tp),
            "cp": range(0, self.tp * self.cp, self.tp),
            "replicas": range(0, inner, self.tp),
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

    def layers(self, model: Transformer) -> list[int]:
        """Layers of each pipeline rank. First and last get no more than others, for they have embedding and head.

        Raises:
            ValueError: the model cannot be cut so.
        """
        if self.pp * self.chunks > model.layers:
            raise ValueError(f"pp · chunks = {self.pp} · {self.chunks}: expected at most {model.layers}, one per layer")
        if model.kv_heads % self.tp:
            raise ValueError(f"tp = {self.tp}: expected a divisor of {model.kv_heads} heads of keys and values")
        base, extra = divmod(model.layers, self.pp)
        order = [*range(1, self.pp - 1), 0, self.pp - 1]
        return [base + (rank in order[:extra]) for rank in range(self.pp)]

    def in_flight(self, rank: int) -> float:
        """Microbatches whose activations this pipeline rank keeps at most, each counted as a whole of its layers."""
        ahead = self.pp - rank - 1
        if self.chunks == 1:
            return min(ahead + 1, self.microbatches)
        return min(2 * ahead + (self.chunks - 1) * self.pp + 1, self.microbatches * self.chunks) / self.chunks
