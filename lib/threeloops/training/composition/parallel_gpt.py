"""The course's GPT on a mesh with axes pp, dp and tp: layers in stages, batches in parts, matrices in shards.

The order matters. Matrices are cut first, while the model is whole and equal on all ranks. Then stages are taken out of
it. Gradients are averaged last, because the pipeline first sums those of its microbatches.
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from threeloops.models.gpt import GPT, MLP
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.expert_parallel import ExpertParallel, Router, own_experts
from threeloops.training.mesh import Mesh
from threeloops.training.pipeline import gpt_stages, one_f_one_b, run_schedule
from threeloops.training.tensor_parallel import gpt_plan, parallelize

__all__ = ["ParallelGPT"]


class ParallelGPT:
    """This rank's part of a GPT, and one step of its training. Every rank of the program makes one.

    Along pp the layers are cut into stages, run by 1F1B. Along tp every stage's matrices, heads and vocabulary are cut.
    Along dp each rank has its own batch. With `experts`, every block has this many experts in place of its MLP, spread
    over the dp ranks. Each token goes to `k` of them, and none is dropped.

    Args:
        mesh: a mesh with axes pp, dp and tp, in any order. A missing axis counts as 1.
        microbatches: the number of parts of each rank's batch.
        seed: the seed of the weights, which equal those of one process with this seed.

    Raises:
        ValueError: the sizes do not fit the mesh. See `Mesh.connect`, `parallelize` and `own_experts`.
    """

    def __init__(
        self,
        config: GPTConfig,
        mesh: Mesh,
        microbatches: int,
        *,
        experts: int = 0,
        k: int = 2,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if unknown := sorted(set(mesh.axes) - {"pp", "dp", "tp"}):
            raise ValueError(f"axis {unknown[0]}: expected a mesh with axes pp, dp and tp")
        mesh = Mesh(**mesh.axes, **{axis: 1 for axis in ("pp", "dp", "tp") if axis not in mesh.axes})
        groups = mesh.connect("pp", "dp", "tp")
        place = mesh.coordinates(dist.get_rank())
        self.pp = groups["pp"]
        self.dp = groups["dp"]
        model = _build(config, experts, k, seed).to(dtype)
        plan = {name: style for name, style in gpt_plan().items() if not (experts and ".mlp" in name)}
        self.sharded = parallelize(model, plan, groups["tp"])
        if experts:
            mine = own_experts(experts, self.dp)
            for block in model.blocks:
                block.mlp = ExpertParallel(
                    block.mlp.router, [block.mlp.experts[e] for e in mine], self.dp, capacity_factor=float("inf")
                )
        self.schedule = one_f_one_b(mesh.axes["pp"], microbatches)
        self.stage = place["pp"]
        self._stage = gpt_stages(model, self.schedule.stages)[self.stage]
        self._like = torch.empty(0, dtype=dtype)
        self._width = config.width

    @property
    def module(self) -> nn.Module:
        """This rank's stage, for checkpoints."""
        return self._stage

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters of this rank's stage, by their names in the whole model."""
        return self._stage.named_parameters()

    def parameters(self) -> Iterator[nn.Parameter]:
        return self._stage.parameters()

    def step(
        self, tokens: Int[Tensor, "batch tokens"], targets: Int[Tensor, "batch tokens"]
    ) -> Float[Tensor, ""] | None:
        """Run forward and backward. `grad` is the gradient of the mean loss over all data-parallel ranks. Returns this
        batch's loss, on the last stage. Gradients must be None or zero before.

        Raises:
            ValueError: the batch cannot be cut into equal microbatches.
        """
        count = self.schedule.microbatches
        if len(tokens) % count:
            raise ValueError(f"a batch of {len(tokens)} cannot be cut into {count} equal microbatches: use a multiple")
        stream = self._like.new_empty(len(tokens) // count, tokens.shape[1], self._width)
        done = run_schedule(
            self.schedule,
            {self.stage: self._stage},
            tokens.chunk(count),
            targets.chunk(count),
            self._stage.loss,
            stream,
            group=self.pp,
        )
        self._average_over_data()
        return done.loss

    def _average_over_data(self) -> None:
        """Gradients of experts are sums over all ranks' tokens already; the rest is summed here, in one message."""
        ranks = dist.get_world_size(self.dp)
        experts = {id(p) for p in _experts_of(self._stage)}
        rest = [p for p in self.parameters() if id(p) not in experts and p.grad is not None]
        if rest and ranks > 1:
            flat = torch.cat([p.grad.reshape(-1) for p in rest])
            dist.all_reduce(flat, group=self.dp)
            for p, summed in zip(rest, flat.split([p.numel() for p in rest]), strict=True):
                p.grad.copy_(summed.view_as(p))
        for p in self.parameters():
            if p.grad is not None:
                p.grad /= ranks


class _Experts(nn.Module):
    """All experts of a block, before they are spread over the ranks."""

    def __init__(self, config: GPTConfig, experts: int, k: int) -> None:
        super().__init__()
        self.router = Router(config.width, experts, k)
        self.experts = nn.ModuleList(MLP(config) for _ in range(experts))


def _build(config: GPTConfig, experts: int, k: int, seed: int) -> GPT:
    """The whole model, the same on every rank; with experts it cannot run before these have been spread."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT(config)
        if experts:
            for block in model.blocks:
                block.mlp = _Experts(config, experts, k)
            model.initialise()
    return model


def _experts_of(module: nn.Module) -> Iterable[nn.Parameter]:
    return [p for layer in module.modules() if isinstance(layer, ExpertParallel) for p in layer.experts.parameters()]
