"""A run that was interrupted ends with the same bits, whenever that was; and another number of ranks, cut in another
way, has the same parameters and the same states of the optimizer."""

import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sharded_training import batch, layer_mb, layers, loss_of
from threeloops.data.loading.loader import Loader
from threeloops.data.loading.sampler import SamplerState
from threeloops.inner.precision.loss_scaler import LossScaler, ScalerState
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.checkpoint import Checkpointer, LocalStore
from threeloops.training.checkpoint.state import TrainingState
from threeloops.training.cluster import Cluster
from threeloops.training.composition import ParallelGPT
from threeloops.training.data_parallel import DDP
from threeloops.training.mesh import Mesh
from threeloops.training.sharded import FSDP, ZeroOptimizer
from threeloops.training.tensor_parallel import ColumnParallelLinear
from torch import nn

STEPS, SAMPLES, WIDTH = 5, 16, 6


class Run:
    """A training run with every kind of state: momentum and variance, a schedule that looks at losses, a loss scale, a
    place in the data, buffers, and random numbers of three generators."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        rank = dist.get_rank() if dist.is_initialized() else 0
        model = nn.Sequential(nn.Linear(WIDTH, 9), nn.BatchNorm1d(9), nn.Dropout(0.4), nn.Linear(9, 1))
        self.model = DDP(model) if dist.is_initialized() else model
        decay = [p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() == 1]
        groups = [{"params": decay[0], "weight_decay": 0.1}, {"params": decay[1], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=0.05, betas=(0.8, 0.9))
        self.warmup = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 5], 0.5)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        generator = torch.Generator().manual_seed(5)
        self.data = torch.randn(SAMPLES, WIDTH, generator=generator)
        self.loader = Loader(lambda rows: self.data[torch.from_numpy(rows)], SAMPLES, 6, SamplerState(seed=3 + rank))
        self.state = TrainingState(
            self.model, self.optimizer, warmup=self.warmup, plateau=self.plateau, scaler=self.scaler, loader=self.loader
        )
        for each in (random.seed, np.random.seed, torch.manual_seed):
            each(100 * seed + rank)

    def steps(self, step, until, after_step=lambda step: None):
        """Losses of the steps from `step` on."""
        losses = []
        while step < until:
            for rows, after in self.loader.with_states():
                self.optimizer.zero_grad()
                noise = random.random() + np.random.rand() * torch.rand(())
                loss = (self.model(rows + noise) - rows.sum(1, keepdim=True)).square().mean()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.warmup.step()
                mean = loss.detach().clone()
                if dist.is_initialized():
                    dist.all_reduce(mean)
                self.plateau.step(mean.item())
                losses.append(loss.item())
                self.loader.state, step = after, step + 1
                after_step(step)
                if step == until:
                    break
        return losses


def interrupt_everywhere(folder, asynchronous):
    """Losses without an interruption, and those of runs that were interrupted after each step; with the values."""
    run = Run(0)
    checkpointer = Checkpointer(LocalStore(folder), keep=STEPS + 1)
    save = checkpointer.save_async if asynchronous else checkpointer.save
    save(0, run.state.state())
    losses = run.steps(0, STEPS, lambda step: save(step, run.state.state()))
    checkpointer.wait()
    values = [each.clone() for each in run.model.state_dict().values()] + [torch.get_rng_state()]
    for step in range(STEPS):
        again = Run(1 + step)
        loaded = Checkpointer(LocalStore(folder)).load(again.state.template, step=step)
        again.state.restore(loaded)
        assert again.steps(step, STEPS) == losses[step:], step
        found = [*again.model.state_dict().values(), torch.get_rng_state()]
        assert all(map(torch.equal, found, values)), step
        assert again.optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    return losses


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit_after_every_step(tmp_path, ranks):
    results = Cluster(ranks).run(interrupt_everywhere, tmp_path, True).results
    assert all(len(set(losses)) == STEPS for losses in results)
    assert len({tuple(losses) for losses in results}) == ranks  # each rank has data and noise of its own


def test_the_same_without_a_process_group(tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    interrupt_everywhere(tmp_path, False)
    torch.set_num_threads(threads)


def test_more_ranks_draw_numbers_of_their_own(tmp_path):
    def save(folder):
        run = Run(0)
        Checkpointer(LocalStore(folder)).save(0, run.state.state())
        return random.random(), np.random.rand(), torch.rand(()).item()

    def load(folder):
        run = Run(9)
        run.state.restore(Checkpointer(LocalStore(folder)).load(run.state.template))
        return random.random(), np.random.rand(), torch.rand(()).item()

    before = Cluster(2).run(save, tmp_path).results
    after = Cluster(4).run(load, tmp_path).results
    assert after[:2] == before
    for kind in zip(*after, strict=True):
        assert len(set(kind)) == 4
    assert Cluster(4).run(load, tmp_path).results == after


def test_a_state_object_is_restored_by_its_dataclass(tmp_path):
    model = nn.Linear(2, 2)
    scaler = LossScaler(ScalerState(scale=4.0, clean_steps=3))
    state = TrainingState(model, scaler=scaler)
    Checkpointer(LocalStore(tmp_path)).save(1, state.state())
    scaler.state = ScalerState()
    state.restore(Checkpointer(LocalStore(tmp_path)).load(state.template))
    assert (scaler.state.scale, scaler.state.clean_steps) == (4.0, 3)


# The same state, cut in other ways


def train_and_save(how, folder, before, dtype=torch.float32):
    """Load what others saved, or train some steps; then save."""
    model, cap, rank = layers(WIDTH, dtype=dtype), 2 * layer_mb(WIDTH, dtype), dist.get_rank()
    wrapped = model
    if how == "ddp":
        wrapped = DDP(model)
    elif how == "fsdp":
        wrapped = FSDP(model, model)
    if how in (1, 2):
        optimizer = ZeroOptimizer(
            model, torch.optim.AdamW, stage=how, bucket_cap_mb=cap, first_bucket_mb=cap / 2, lr=0.01
        )
    else:
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    state = TrainingState(wrapped, optimizer)

    def steps(*numbers):
        for step in numbers:
            optimizer.zero_grad()
            loss_of(wrapped(batch(rank, step, WIDTH, dtype))).backward()
            optimizer.step()

    if before is None:
        steps(1, 2, 3)
    else:
        state.restore(Checkpointer(LocalStore(before)).load(state.template))
    Checkpointer(LocalStore(folder)).save(3, state.state())
    steps(4, 5)
    Checkpointer(LocalStore(folder / "later")).save(5, state.state())


def tensors(folder):
    state = Checkpointer(LocalStore(folder)).load().state
    return {
        name: each for name, each in state.items() if name.startswith(("model.", "optimizer.")) and "random" not in name
    }


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        assert torch.equal(found[name], each), name


def test_four_to_two_to_three_to_one_whatever_cuts_the_states(tmp_path):
    chain = [(4, "ddp"), (2, 1), (3, "fsdp"), (1, 2), (3, 2), (1, "plain")]
    before = None
    for number, (ranks, how) in enumerate(chain):
        Cluster(ranks).run(train_and_save, how, tmp_path / str(number), before)
        before = tmp_path / str(number)
    expected = tensors(tmp_path / "0")
    assert {"model.0.linear.weight", "optimizer.3.linear.bias.exp_avg_sq", "optimizer.2.linear.weight.step"} < set(
        expected
    )
    assert expected["optimizer.2.linear.weight.step"] == 3 and expected["optimizer.2.linear.weight.exp_avg"].any()
    for number in range(1, len(chain)):
        assert_equal(tensors(tmp_path / str(number)), expected)


def test_a_run_that_goes_on_cut_in_another_way_goes_on_as_it_would_have(tmp_path):
    Cluster(2).run(train_and_save, 2, tmp_path / "0", None)
    for number, how in enumerate(("ddp", 1, 2, "fsdp"), 1):
        Cluster(2).run(train_and_save, how, tmp_path / str(number), tmp_path / "0")
        assert_equal(tensors(tmp_path / str(number) / "later"), tensors(tmp_path / "0/later"))


def test_float32_masters_of_16_bit_parameters_are_saved(tmp_path):
    Cluster(3).run(train_and_save, 2, tmp_path / "0", None, torch.bfloat16)
    Cluster(2).run(train_and_save, 1, tmp_path / "1", tmp_path / "0", torch.bfloat16)
    expected = tensors(tmp_path / "0")
    master, value = expected["optimizer.0.linear.weight.master"], expected["model.0.linear.weight"]
    assert (
        master.dtype == torch.float32
        and torch.equal(master.bfloat16(), value)
        and not torch.equal(master, value.float())
    )
    assert_equal(tensors(tmp_path / "1"), expected)
    Cluster(3).run(train_and_save, 2, tmp_path / "2", tmp_path / "0", torch.bfloat16)
    assert_equal(tensors(tmp_path / "2/later"), tensors(tmp_path / "0/later"))


def parallel_gpt(mesh, experts, folder, before):
    """One that is trained a step, or loaded; the parameters of both are drawn from other seeds."""
    sizes = {
        "vocabulary_size": 16,
        "layers": 3,
        "width": 16,
        "mlp_width": 24,
        "max_sequence": 8,
        "heads": 4,
        "kv_heads": 2,
        "qkv_bias": True,
    }
    trainer = ParallelGPT(GPTConfig.tiny(**sizes), mesh, 2, experts=experts, seed=0 if before is None else 1)
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=0.01)
    state = TrainingState(trainer.module, optimizer)
    if before is None:
        text = torch.randint(0, 16, (4, 7), generator=torch.Generator().manual_seed(0))
        trainer.step(text[:, :-1], text[:, 1:])
        optimizer.step()
    else:
        state.restore(Checkpointer(LocalStore(before)).load(state.template))
    Checkpointer(LocalStore(folder)).save(1, state.state())


@pytest.mark.parametrize("experts", [0, 4])
def test_tensor_pipeline_and_expert_parallel_ranks_load_what_one_process_saved_and_back(tmp_path, experts):
    meshes = [Mesh(dp=1), Mesh(pp=2, tp=2), Mesh(dp=1)] if not experts else [Mesh(dp=1), Mesh(tp=2, dp=2), Mesh(pp=3)]
    before = None
    for number, mesh in enumerate(meshes):
        Cluster(mesh.size).run(parallel_gpt, mesh, experts, tmp_path / str(number), before)
        before = tmp_path / str(number)
    expected = tensors(tmp_path / "0")
    assert expected["model.blocks.1.attention.qkv.weight"].shape == (32, 16)
    assert expected["model.blocks.1.attention.qkv.bias"].shape == (32,)
    assert ("model.blocks.2.mlp.experts.3.up.weight" in expected) == bool(experts)
    for number in range(1, len(meshes)):
        assert_equal(tensors(tmp_path / str(number)), expected)


# What does not fit


def linear_state(optimizer=torch.optim.AdamW, **parts):
    model = nn.Linear(2, 2)
    return TrainingState(model, optimizer(model.parameters(), lr=0.1), **parts)


def test_parts_must_be_the_same(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    Checkpointer(LocalStore(tmp_path)).save(1, TrainingState(model, optimizer, scheduler=scheduler).state())
    other = TrainingState(model, optimizer)
    with pytest.raises(
        ValueError, match="saved with optimizer groups, scheduler beside tensors: expected optimizer groups"
    ):
        other.restore(Checkpointer(LocalStore(tmp_path)).load(other.template))


def test_groups_must_be_as_many(tmp_path):
    Checkpointer(LocalStore(tmp_path)).save(1, linear_state().state())
    model = nn.Linear(2, 2)
    two = TrainingState(model, torch.optim.AdamW([{"params": [p]} for p in model.parameters()]))
    with pytest.raises(ValueError, match="1 groups of parameters were saved: expected 2"):
        two.restore(Checkpointer(LocalStore(tmp_path)).load(two.template))


def test_an_optimizer_of_another_model_is_refused():
    state = TrainingState(nn.Linear(2, 2), torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    with pytest.raises(ValueError, match="the optimizer trains 2 tensors, and 0 of them are the model's"):
        state.state()


@pytest.mark.parametrize("name", ["random", "optimizer groups", "model.ema", "optimizer.ema"])
def test_a_part_may_not_be_called_as_a_part_of_every_state(name):
    with pytest.raises(ValueError, match=f"a part is called '{name}'"):
        TrainingState(nn.Linear(2, 2), **{name: LossScaler(ScalerState())})


def state_per_row():
    layer = ColumnParallelLinear(nn.Linear(4, 6), None)
    optimizer = torch.optim.Adafactor(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    try:
        TrainingState(layer, optimizer).state()
    except ValueError as error:
        return str(error)


def test_an_optimizers_state_of_another_shape_than_a_parameter_that_is_cut_is_refused():
    said = "the optimizer's 'row_var' of 'weight' has shape (3, 1): expected one number, or (3, 4), that of the tensor"
    assert all(found.startswith(said) for found in Cluster(2).run(state_per_row).results)


def master_of_the_model(folder):
    """The model has a parameter of that name, and the optimizer that saved it had no masters."""

    def made(dtype, how):
        model = nn.Linear(2, 2, dtype=dtype)
        model.master = nn.Parameter(torch.zeros(2, dtype=dtype))
        return model, how(model)

    plain, optimizer = made(torch.bfloat16, lambda model: torch.optim.AdamW(model.parameters()))
    Checkpointer(LocalStore(folder)).save(1, TrainingState(plain, optimizer).state())
    model, zero = made(torch.bfloat16, lambda model: ZeroOptimizer(model, torch.optim.AdamW, stage=1))
    state = TrainingState(model, zero)
    state.restore(Checkpointer(LocalStore(folder)).load(state.template))
    return all(torch.equal(bucket.master.bfloat16(), bucket.shard) for bucket in zero.buckets)


def test_a_parameter_called_master_is_not_one_of_the_optimizers(tmp_path):
    assert Cluster(1).run(master_of_the_model, tmp_path).results == (True,)


def test_a_state_from_before_the_first_step_empties_the_optimizer(tmp_path):
    state = linear_state()
    Checkpointer(LocalStore(tmp_path)).save(0, state.state())
    model, optimizer = state.model, state.optimizer
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state.restore(Checkpointer(LocalStore(tmp_path)).load(state.template))
    assert not any(optimizer.state.values())
