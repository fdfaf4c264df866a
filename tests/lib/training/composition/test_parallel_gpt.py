"""A GPT cut in three ways at once computes what one process does, on the virtual cluster and on real processes."""

import pytest
import torch
import torch.distributed as dist
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.cluster import Cluster, RankFailed, run_on_processes
from threeloops.training.composition import ParallelGPT
from threeloops.training.composition.demo import _mesh_for, main
from threeloops.training.expert_parallel import Router
from threeloops.training.mesh import Mesh
from threeloops.training.tensor_parallel import gpt_plan, parallelize
from torch import nn

BATCH, TOKENS, MICROBATCHES, EXPERTS = 4, 6, 2, 4


def config(**changes):
    sizes = {"vocabulary_size": 16, "layers": 3, "width": 16, "mlp_width": 24, "max_sequence": 8}
    return GPTConfig.tiny(**{**sizes, **changes})


def batch(rank, seed=0):
    text = torch.randint(0, 16, (BATCH, TOKENS + 1), generator=torch.Generator().manual_seed(100 * seed + rank))
    return text[:, :-1], text[:, 1:]


class Mixture(nn.Module):
    """A mixture of experts, token by token."""

    def __init__(self, router, experts):
        super().__init__()
        self.router, self.experts = router, experts

    def forward(self, x):
        rows = []
        for token in x.flatten(0, -2):
            scores = (self.router.weight @ token).softmax(0)
            best = scores.topk(self.router.k).indices
            rows.append(sum(scores[e] * self.experts[e](token) for e in best))
        return torch.stack(rows).view(x.shape)


def whole(config, experts, seed=0):
    """The same weights in one process, in float64."""
    torch.manual_seed(seed)
    model = GPT(config)
    if experts:
        for block in model.blocks:
            router = Router(config.width, experts, 2)
            block.mlp = Mixture(router, nn.ModuleList(type(block.mlp)(config) for _ in range(experts)))
        model.initialise()
    return model.double()


def one_process(config, dp, experts, steps=1, lr=0.1):
    """Losses of each batch, and the gradients of the last step, by name."""
    model, losses = whole(config, experts), []
    for step in range(steps):
        model.zero_grad()
        losses.append([])
        for rank in range(dp):
            tokens, targets = batch(rank, step)
            loss = model(tokens, targets) / dp
            loss.backward()
            losses[-1].append(dp * loss.item())
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad
    return losses, gradients


def program(config, axes, experts, steps, gradients, lr=0.1):
    """Losses, and by how much this rank's gradients differ from its part of the expected ones."""
    mesh = Mesh(**axes)
    place = mesh.coordinates(dist.get_rank())
    trainer = ParallelGPT(config, mesh, MICROBATCHES, experts=experts, dtype=torch.float64)
    losses = []
    for step in range(steps):
        for p in trainer.parameters():
            p.grad = None
        loss = trainer.step(*batch(place.get("dp", 0), step))
        losses.append(None if loss is None else loss.item())
        with torch.no_grad():
            for p in trainer.parameters():
                p -= lr * p.grad
    return losses, differences(config, mesh, place, experts, dict(trainer.named_parameters()), gradients)


def differences(config, mesh, place, experts, parameters, gradients):
    expected = whole(config, experts)
    with torch.no_grad():
        for name, p in expected.named_parameters():
            p.copy_(gradients[name])
    plan = {name: style for name, style in gpt_plan().items() if not (experts and ".mlp" in name)}
    parallelize(expected, plan, Mesh(**{**mesh.axes, "tp": mesh.axes.get("tp", 1)}).connect("tp")["tp"])
    wanted = dict(expected.named_parameters(remove_duplicate=False))
    mine = experts // mesh.axes.get("dp", 1) * place.get("dp", 0) if experts else 0
    found = {}
    for name, p in parameters.items():
        before, dot, after = name.partition(".experts.")
        if dot:
            number, _, rest = after.partition(".")
            name = f"{before}.experts.{mine + int(number)}.{rest}"
        found[name] = (p.grad - wanted[name]).abs().max().item()
    return found


MESHES = [
    {"pp": 2, "dp": 2, "tp": 2},
    {"pp": 3, "tp": 2},
    {"dp": 2, "pp": 2},
    {"tp": 2, "dp": 3},
    {"dp": 1},
]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_losses_and_gradients_are_those_of_one_process(axes, tied):
    sizes = config(tied_embeddings=tied)
    check(sizes, axes, 0, steps=2)


@pytest.mark.parametrize("axes", [{"pp": 2, "dp": 2, "tp": 2}, {"dp": 4}], ids=str)
def test_with_experts_too(axes):
    check(config(layers=2), axes, EXPERTS, steps=1)


def check(sizes, axes, experts, steps):
    dp = axes.get("dp", 1)
    losses, gradients = one_process(sizes, dp, experts, steps)
    mesh = Mesh(**axes)
    run = Cluster(mesh.size).run(program, sizes, axes, experts, steps, gradients)
    seen = set()
    for rank, (found, off) in enumerate(run.results):
        place = mesh.coordinates(rank)
        if place.get("pp", 0) == mesh.axes.get("pp", 1) - 1:
            expected = [step[place.get("dp", 0)] for step in losses]
            assert found == pytest.approx(expected, rel=1e-12)
        else:
            assert found == [None] * steps
        assert off and max(off.values()) < 1e-13, off
        seen |= off.keys()
    assert gradients.keys() <= seen, "every parameter of the whole model is on some rank"


def test_on_real_processes_it_trains():
    assert _mesh_for(8).axes == {"pp": 2, "dp": 2, "tp": 2} and _mesh_for(3).axes == {"pp": 1, "dp": 3, "tp": 1}
    said = run_on_processes("gloo", 4, main)
    assert len(set(said)) == 1 and said[0].startswith("Mesh(pp=2, dp=1, tp=2), mean losses ")
    losses = [float(loss) for loss in said[0].split("losses ")[1].split(", ")]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.75 * losses[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ParallelGPT(config(), Mesh(xp=2), 2), "axis xp: expected a mesh with axes pp, dp and tp"),
        (
            lambda: ParallelGPT(config(), Mesh(dp=3), 2),
            r"Mesh\(dp=3, pp=1, tp=1\) has 3 ranks, and the program runs on 2",
        ),
        (lambda: ParallelGPT(config(kv_heads=1), Mesh(tp=2), 2), "kv_heads = 1 cannot be cut over 2 ranks"),
        (lambda: ParallelGPT(config(), Mesh(dp=2), 2, experts=3), "3 experts cannot be shared equally by 2 ranks"),
        (
            lambda: ParallelGPT(config(), Mesh(dp=2), 3).step(*batch(0)),
            "a batch of 4 cannot be cut into 3 equal microbatches",
        ),
    ],
)
def test_what_does_not_fit_is_named(make, message):
    def program():
        make()

    with pytest.raises(RankFailed, match=message):
        Cluster(2).run(program)
