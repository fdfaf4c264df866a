"""The memory budget: what the tracker counts, what the accountant predicts, and that both agree."""

import gc
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.hardware import device
from threeloops.inner.memory import (
    LiveStorage,
    MemoryBudgetExceeded,
    Storage,
    Timeline,
    TrainingStep,
    account,
    draw_bars,
    draw_timeline,
)
from threeloops.inner.memory.recompute import Segments
from threeloops.inner.memory.step import _parameter_sizes
from threeloops.inner.precision.amp import MasterWeights
from threeloops.models.gpt import GPT, GPTConfig
from threeloops.models.rope_scaling import LinearScaling
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

MIB = 2**20


def peak(run):
    with LiveStorage() as live:
        run()
    return live.timeline.peak_bytes


def test_a_storage_counts_once_however_many_tensors_share_it():
    def run():
        x = torch.zeros(100, 50)
        return [x.t(), x[3:7], x.view(-1), x.detach(), x.unfold(0, 2, 1)]

    assert peak(run) == 100 * 50 * 4


def test_a_view_keeps_all_of_its_storage_alive():
    with LiveStorage() as live:
        row = torch.zeros(1000, 50)[3]
    assert row.nbytes == 200
    assert live.timeline.live_bytes == 1000 * 50 * 4


def test_storage_ends_with_its_last_reference():
    def run():
        for _ in range(10):
            torch.zeros(MIB // 4)

    assert peak(run) == MIB


def test_two_tensors_at_once_are_twice_the_peak_and_nothing_is_left():
    def run():
        first = torch.zeros(MIB // 4)
        second = first + 1
        del first
        return second + 1

    with LiveStorage() as live:
        run()
    assert live.timeline.peak_bytes == 2 * MIB
    assert live.timeline.live_bytes == 0


def test_what_existed_before_counts_from_its_first_use():
    before = torch.zeros(MIB // 4)
    with LiveStorage() as live:
        assert live.timeline.live_bytes == 0
        before.sum()
        assert live.timeline.by("kind", len(live.timeline.changes))["input"] == MIB


def test_a_storage_that_is_resized_is_counted_anew():
    with LiveStorage() as live:
        out = torch.empty(0)
        torch.add(torch.ones(1000), 1, out=out)
    assert live.timeline.live_bytes == 4000
    assert live.timeline.peak_bytes == 8000


def model_and_step(config, batch, sequence, optimizer="adamw", dtype=torch.float32, segment=None):
    """A model that has taken a step, its optimizer, and a function that takes another."""
    torch.manual_seed(0)
    model = GPT(config).to(dtype).to(device())
    if segment:
        model.blocks = Segments(model.blocks, segment)
    made = {
        "adamw": lambda: torch.optim.AdamW(model.parameters(), foreach=False),
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1, foreach=False),
        "momentum": lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False),
    }[optimizer]()
    tokens = torch.randint(config.vocabulary_size, (batch, sequence), device=device())
    targets = tokens.roll(-1, 1)

    def step():
        made.zero_grad(set_to_none=True)
        loss = model(tokens, targets)
        loss.backward()
        made.step()

    step()
    made.zero_grad(set_to_none=True)
    return model, made, step


def tracked(*arguments, **options):
    model, optimizer, step = model_and_step(*arguments, **options)
    with LiveStorage(model, optimizers=[optimizer]) as live:
        step()
    return live


TINY = GPTConfig.tiny
CASES = {
    "batch": (TINY(), 5, 64, "adamw", None),
    "length": (TINY(), 2, 128, "adamw", None),
    "layers": (TINY(layers=6), 2, 64, "momentum", None),
    "kv_heads": (TINY(layers=3, kv_heads=1, tied_embeddings=False), 3, 65, "sgd", None),
    "wide heads": (TINY(layers=3, head_dim=40), 2, 64, "adamw", None),
    "narrow heads": (TINY(layers=3, head_dim=6, rope_scaling=LinearScaling(2.0)), 2, 64, "sgd", None),
    "optimizer, where it is the peak": (TINY(layers=4), 1, 2, "adamw", None),
    "recompute": (TINY(layers=6), 4, 64, "adamw", 2),
}
NARROW = {"layers": 1, "heads": 4, "kv_heads": 4, "width": 64, "max_sequence": 8}
UPDATES = {
    "gate and up are the largest": GPTConfig(vocabulary_size=16, mlp_width=512, **NARROW),
    "the head is": GPTConfig(vocabulary_size=512, mlp_width=16, tied_embeddings=False, **NARROW),
    "qkv is": GPTConfig(vocabulary_size=16, mlp_width=16, **NARROW),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_accountant_predicts_the_peak_of_live_storage_within_5_percent(case):
    config, batch, sequence, optimizer, segment = case
    live = tracked(config, batch, sequence, optimizer, segment=segment)
    predicted = account(config, batch, sequence, optimizer=optimizer, layers_per_segment=segment, device=device())
    assert predicted.peak_bytes == pytest.approx(live.timeline.peak_bytes, rel=0.05)
    assert predicted.timeline.live_bytes == pytest.approx(live.timeline.live_bytes, rel=0.01)


@pytest.mark.parametrize("config", UPDATES.values(), ids=UPDATES)
def test_adamws_update_is_predicted_but_for_scalars(config):
    live = tracked(config, 1, 2)
    predicted = account(config, 1, 2, device=device())
    assert predicted.at_peak["gradient"] == predicted.step.parameters, "the peak is the update"
    scalars = 4 * len(list(GPT(config).parameters()))  # AdamW counts each parameter's steps in a tensor of its own
    assert predicted.peak_bytes == pytest.approx(live.timeline.peak_bytes, abs=scalars + 64)


@pytest.mark.skipif(device() == "cuda", reason="operators keep other tensors on a GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_heads", [1, 32])
def test_heads_of_two_numbers_hold_no_scores_either(kv_heads, dtype):
    config = TINY(heads=32, kv_heads=kv_heads)
    live = tracked(config, 2, 128, "sgd", getattr(torch, dtype))
    predicted = account(config, 2, 128, dtype=dtype, optimizer="sgd")
    assert predicted.peak_bytes == pytest.approx(live.timeline.peak_bytes, rel=0.05)


@pytest.mark.skipif(device() == "cuda", reason="operators keep other tensors on a GPU")
@pytest.mark.parametrize("segment", [None, 1, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("head_dim", [16, 24])
def test_on_a_cpu_the_prediction_is_exact_but_for_scalars(head_dim, dtype, segment):
    config = TINY(layers=4, kv_heads=1, mlp_width=100, head_dim=head_dim)
    live = tracked(config, 3, 61, "sgd", getattr(torch, dtype), segment)
    predicted = account(config, 3, 61, dtype=dtype, optimizer="sgd", layers_per_segment=segment)
    assert predicted.peak_bytes == pytest.approx(live.timeline.peak_bytes, abs=64)
    for kind in ("parameter", "activation"):
        assert predicted.at_peak[kind] == pytest.approx(live.timeline.by("kind")[kind], abs=64)


@pytest.mark.skipif(device() == "cuda", reason="operators keep other tensors on a GPU")
@pytest.mark.parametrize("attention", ["flash", "scores"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_layer_keeps_what_autograd_packs(kv_heads, attention):
    config = TINY(kv_heads=kv_heads, layers=1)
    kept = account(config, 3, 40, attention=attention).layer
    assert packed_bytes(config, attention, torch.float32) == sum(kept.values())


@pytest.mark.skipif(device() == "cuda", reason="operators keep other tensors on a GPU")
def test_a_single_head_is_side_by_side_already():
    config = TINY(heads=1, kv_heads=1, layers=1)
    assert packed_bytes(config, "flash", torch.float32) == sum(account(config, 3, 40).layer.values())


@pytest.mark.skipif(device() == "cuda", reason="operators keep other tensors on a GPU")
@pytest.mark.parametrize(("dtype", "keeps_input"), [("bfloat16", False), ("float16", False), ("float64", True)])
def test_a_layer_counts_its_input_only_where_it_keeps_it(dtype, keeps_input):
    config = TINY(layers=1)
    kept = account(config, 3, 40, dtype=dtype).layer
    assert packed_bytes(config, "flash", getattr(torch, dtype)) == sum(kept.values())
    assert ("input" in kept) == keeps_input


def packed_bytes(config, attention, dtype):
    """An oracle of another kind: the storages that pass through autograd's own pack hook, of a block at 3 × 40."""
    model = GPT(config).to(dtype)
    x = torch.randn(3, 40, config.width, dtype=dtype, requires_grad=True) * 1
    fixed = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
    packed = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in fixed:
            packed[storage._cdata] = storage
        return tensor

    backend = SDPBackend.MATH if attention == "scores" else SDPBackend.FLASH_ATTENTION
    with sdpa_kernel(backend), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model.blocks[0](x, model.rotation(0, 40))
    assert out.shape == x.shape
    return sum(storage.nbytes() for storage in packed.values())


def test_a_layer_of_the_courses_kernels_keeps_what_they_save():
    pytest.importorskip("triton")
    from threeloops.inner import interpreter

    if not interpreter.enable_without_gpu():
        pytest.skip("kernels are compiled here: the tracker itself can watch them")
    config = TINY(kernels="fused", layers=1)
    model = GPT(config)
    x = torch.randn(2, 40, config.width, requires_grad=True) * 1
    fixed = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
    packed = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in fixed:
            packed[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.blocks[0](x, model.rotation(0, 40))
    assert sum(s.nbytes() for s in packed.values()) == sum(account(config, 2, 40).layer.values())


def test_kinds_and_modules_at_the_peak():
    config = TINY()
    live = tracked(config, 3, 100)
    kinds = live.timeline.by("kind")
    assert kinds["parameter"] == config.parameters_count() * 4
    assert kinds["state"] == pytest.approx(2 * config.parameters_count() * 4, abs=200)
    modules = live.timeline.by("module")
    assert modules["blocks.0.mlp.gate"] >= 3 * 100 * config.mlp_width * 4
    end = live.timeline.by("kind", len(live.timeline.changes))
    assert end["gradient"] == config.parameters_count() * 4 and "activation" not in end


def test_a_backward_operator_belongs_to_the_module_whose_forward_made_its_node():
    model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 4))
    out = []
    with LiveStorage(model) as live:
        model(torch.randn(5, 8)).sum().backward()
        out.append(live.timeline)
    made = [s for s in out[0].storages if s.operator == "silu_backward of SiluBackward0"]
    assert [s.module for s in made] == ["1"]


def test_the_tracker_changes_no_number():
    plain_model, _, plain_step = model_and_step(TINY(), 2, 32)
    model, optimizer, step = model_and_step(TINY(), 2, 32)
    plain_step()
    with LiveStorage(model, optimizers=[optimizer]):
        step()
    for ours, theirs in zip(model.parameters(), plain_model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_budget_that_is_too_small_names_the_largest_tensors_and_where_they_were_made():
    model, optimizer, step = model_and_step(TINY(), 4, 128)
    with (
        pytest.raises(MemoryBudgetExceeded) as caught,
        LiveStorage(model, optimizers=[optimizer], budget_bytes=5 * MIB),
    ):
        step()
    text = str(caught.value)
    for part in ("expected at most 5 MiB", "largest live tensors", "blocks.0.mlp", "gpt.py:", "activations weigh most"):
        assert part in text
    assert caught.value.timeline.live_bytes > 5 * MIB
    del caught
    gc.collect()
    step()  # the hooks of the tracker are gone and the model still trains


def hooks(model):
    return [len(parameter._post_accumulate_grad_hooks or ()) for parameter in model.parameters()]


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_parameter_counts_and_makes_no_gradient(frozen):
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    model[frozen].requires_grad_(False)
    with LiveStorage(model) as live:
        model(torch.ones(2, 10)).sum().backward()
    assert live.timeline.peak_of("parameter") == 800
    assert live.timeline.peak_of("gradient") == 400


def test_a_budget_that_is_exceeded_at_entry_leaves_nothing_behind():
    model = nn.Linear(100, 100)
    with pytest.raises(MemoryBudgetExceeded), LiveStorage(model, budget_bytes=40_100):  # the weight fits, the bias not
        raise AssertionError("entered")
    assert hooks(model) == [0, 0]
    model(torch.ones(2, 100)).sum().backward()


@pytest.mark.parametrize("before", [True, False])
def test_a_sparse_gradient_counts_its_indices_and_values(before):
    model = nn.Embedding(10, 4, sparse=True)

    def backward():
        model(torch.tensor([1, 2])).sum().backward()

    if before:
        backward()
    with LiveStorage(model) as live:
        if not before:
            backward()
        kinds = live.timeline.by("kind", len(live.timeline.changes))
    assert kinds["gradient"] == 2 * 8 + 2 * 4 * 4


def test_a_sparse_buffer_counts_its_indices_and_values():
    model = nn.Module()
    model.register_buffer("mask", torch.eye(3).to_sparse())
    with LiveStorage(model) as live:
        pass
    assert live.timeline.peak_of("buffer") == 3 * 2 * 8 + 3 * 4


def test_a_tracker_counts_once():
    live = LiveStorage(nn.Linear(100, 100))
    with live:
        pass
    with pytest.raises(RuntimeError, match="a second `with`: expected a new LiveStorage"), live:
        pass
    assert live.timeline.peak_bytes == 40_400


def test_a_budget_that_is_met_is_not_noticed():
    model, optimizer, step = model_and_step(TINY(), 2, 32)
    with LiveStorage(model, optimizers=[optimizer]) as live:
        step()
    with LiveStorage(model, optimizers=[optimizer], budget_bytes=live.timeline.peak_bytes):
        step()


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"batch": 0}, "batch = 0"),
        ({"sequence": 129}, "sequence = 129"),
        ({"dtype": "int3"}, "dtype = 'int3'"),
        ({"optimizer": "lion"}, "optimizer = 'lion'"),
        ({"layers_per_segment": 4}, "layers_per_segment = 4"),
        ({"layers_per_segment": 0}, "layers_per_segment = 0"),
        ({"attention": "linear"}, "attention = 'linear'"),
        ({"device": "tpu"}, "device = 'tpu'"),
        ({"model": TINY(qkv_bias=True)}, "qkv_bias = True: the accountant does not know"),
        ({"model": TINY(qk_norm=True)}, "qk_norm = True"),
        ({"model": TINY(sliding_window=8)}, "sliding_window = 8"),
    ],
)
def test_a_quantity_that_does_not_fit_is_named(changes, names):
    sizes = {"model": TINY(layers=6), "batch": 1, "sequence": 16} | changes
    with pytest.raises(ValueError, match=names):
        TrainingStep(**sizes)


def test_no_layers_and_no_budget_are_named():
    with pytest.raises(ValueError, match="layers = 0"):
        TINY(layers=0)
    with pytest.raises(ValueError, match="budget_bytes = 0"):
        LiveStorage(budget_bytes=0)
    with pytest.raises(ValueError, match="dtype = 'int8': expected one of float64, float32, float16, bfloat16"):
        TrainingStep(TINY(), 1, 16, dtype="int8")


def test_bytes_a_parameter():
    small = GPTConfig.small()
    assert account(small, 1, 16).per_parameter == 16  # float32 weights, gradients, two moments
    assert account(small, 1, 16, dtype="bfloat16", masters=True).per_parameter == 16
    assert account(small, 1, 16, dtype="bfloat16").per_parameter == 8
    assert account(small, 1, 16, optimizer="sgd").per_parameter == 8


@pytest.mark.parametrize("tied", [True, False])
def test_sizes_of_parameters_come_in_the_models_own_order(tied):
    config = TINY(layers=3, kv_heads=1, tied_embeddings=tied, head_dim=24)
    assert _parameter_sizes(config) == [parameter.numel() for parameter in GPT(config).parameters()]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_masters_are_of_the_published_convention_and_the_courses_hold_two_bytes_more(optimizer):
    config = TINY(layers=1)
    model = GPT(config).to(torch.bfloat16)
    made = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer]
    masters = MasterWeights(model.parameters(), partial(made, foreach=False))
    tokens = torch.randint(config.vocabulary_size, (1, 4))
    model(tokens, tokens).backward()
    masters.step()
    held = [*model.parameters(), *masters.masters, *(master.grad for master in masters.masters)]
    for state in masters.optimizer.state.values():
        held += [state["exp_avg"], state["exp_avg_sq"]]
    published = account(config, 1, 4, dtype="bfloat16", masters=True, optimizer=optimizer).per_parameter
    assert sum(tensor.nbytes for tensor in held) / config.parameters_count() == published + 2


sizes = st.tuples(*(st.integers(1, 6) for _ in range(3)), st.sampled_from([None, 1]), st.booleans())


@pytest.mark.parametrize("tied", [True, False])
def test_parts_are_the_most_of_each_kind_at_any_moment(tied):
    found = account(TINY(layers=4, vocabulary_size=1000, tied_embeddings=tied), 1, 2, optimizer="sgd")
    assert found.parts == {kind: found.timeline.peak_of(kind) for kind in found.parts}
    assert set(found.parts) >= set(found.at_peak)
    assert all(found.parts[kind] >= size for kind, size in found.at_peak.items())


@given(sizes)
@settings(max_examples=40)
def test_an_account_adds_up(values):
    batch, layers, length, segment, tied = values
    config = TINY(layers=layers, tied_embeddings=tied)
    found = account(config, batch, 8 * length, layers_per_segment=segment)
    assert sum(found.at_peak.values()) == found.peak_bytes == found.timeline.peak_bytes
    assert found.timeline.live_bytes == found.step.parameters * 2 + found.step.states + found.step.tables + (
        found.step.inputs
    )
    assert max(change.live for change in found.timeline.changes) <= sum(found.parts.values())
    bigger = account(config, batch + 1, 8 * length, layers_per_segment=segment)
    assert bigger.peak_bytes > found.peak_bytes
    assert found.fits(found.peak_bytes) and not found.fits(found.peak_bytes - 1)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=20))
def test_a_timeline_knows_its_peak_and_who_was_alive(sizes):
    line = Timeline()
    for number, size in enumerate(sizes):
        line.storages.append(Storage(size, "temporary" if number % 2 else "activation", "made"))
        line.grow(number, size)
        if number % 3 == 2:
            line.grow(number - 1, -sizes[number - 1])
    levels = [sum(c.bytes for c in line.changes[: i + 1]) for i in range(len(line.changes))]
    assert [c.live for c in line.changes] == levels
    assert line.peak_bytes == max(levels) == sum(size for _, size in line.alive()) == sum(line.by("kind").values())
    curve = line.curve()
    assert [sum(values) for values in zip(*curve.values(), strict=True)] == levels


def test_both_pictures_draw_without_a_notebook():
    from threeloops.lab import figure

    found = account(TINY(), 2, 64)
    fig, (left, right) = figure(1, 2)
    draw_bars(left, {"one": found.at_peak, "two": found.parts})
    draw_timeline(right, found.timeline)
    assert len(left.patches) and len(right.collections)
    assert right.get_xlim() == (1, len(found.timeline.changes) - found.timeline.marks[0][0]), (
        "drawn from the first mark"
    )
    assert "input" not in right.get_legend_handles_labels()[1]
    fig.canvas.draw()


def test_the_picture_of_many_changes_is_small_and_shows_the_peak():
    from threeloops.lab import figure

    line = Timeline()
    for number in range(3000):
        line.storages.append(Storage(2**20, "activation", "made"))
        line.grow(number, 2**20)
        if number != 1234:
            line.grow(number, -(2**20))
    fig, axes = figure()
    draw_timeline(axes, line)
    [corners] = [path.vertices for area in axes.collections for path in area.get_paths()]
    assert len(corners) < 1000 and corners[:, 1].max() == line.peak_bytes / 2**20 == 2
    assert axes.get_xlim() == (1, len(line.changes))


@pytest.mark.gpu
def test_on_a_gpu_the_allocator_reports_the_live_bytes_and_its_workspace():
    if device() != "cuda":
        pytest.skip("no CUDA device")
    config = GPTConfig.small(layers=4)
    live = tracked(config, 4, 1024, "sgd", torch.bfloat16)
    assert live.allocator_peak_bytes == pytest.approx(live.timeline.peak_bytes, rel=0.05)
    predicted = account(config, 4, 1024, dtype="bfloat16", optimizer="sgd", device="cuda")
    assert predicted.peak_bytes == pytest.approx(live.timeline.peak_bytes, rel=0.05)
