"""The loss scaler: scale and parameters follow torch's bit for bit; what it passes over in silence has a name."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.inner.precision.amp import (
    SMALLEST_SCALE,
    LossScaler,
    MasterWeights,
    ScalerState,
    ScaleUnderflow,
    after_step,
)
from threeloops.inner.precision.loss_scaler import _all_finite

STEPS = 500


def injected(step, overflows):
    """What is added to the gradients of a step: nothing, an infinity or a NaN."""
    return {0: math.inf, 1: math.nan, 2: -math.inf}[step % 3] if step in overflows else 0.0


def train(scaled_step, model, overflows):
    """Parameters and scales of 500 steps; `scaled_step(loss, spoil)` does one and returns the scale after it."""
    data = torch.Generator().manual_seed(1)
    scales, parameters = [], []
    for step in range(STEPS):
        x, y = torch.randn(16, 5, generator=data), torch.randn(16, 3, generator=data)
        loss = torch.nn.functional.mse_loss(model(x), y)

        def spoil(step=step):
            next(model.parameters()).grad[0, 0] += injected(step, overflows)

        scales.append(scaled_step(loss, spoil))
        parameters.append(torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()]))
    return scales, torch.stack(parameters)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))


def make(kind, model):
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(
    "settings",
    [
        {"init_scale": 2.0**16, "growth_interval": 20},
        {"init_scale": 2.0**120, "growth_interval": 3},  # climbs to the end of float32
        {
            "init_scale": 1000.0,
            "growth_factor": 1.7,
            "backoff_factor": 0.3,
            "growth_interval": 7,
        },  # rounds at every turn
        {
            "init_scale": 12345.678901,  # no float32
            "growth_factor": 1.7,
            "backoff_factor": 0.3,
            "growth_interval": 7,
        },
    ],
    ids=["usual", "at the top", "no powers of two", "from between two float32 numbers"],
)
def test_scale_and_parameters_follow_torch_for_500_steps(settings, optimizer):
    rng = torch.Generator().manual_seed(2)
    overflows = {s for s in range(STEPS) if torch.rand((), generator=rng) < 0.06} | set(range(100, 109))

    theirs, ours = network(), network()
    their_optimizer, our_optimizer = make(optimizer, theirs), make(optimizer, ours)
    their_scaler = torch.amp.GradScaler("cpu", **settings)

    def their_step(loss, spoil):
        their_optimizer.zero_grad()
        their_scaler.scale(loss).backward()
        spoil()
        their_scaler.step(their_optimizer)
        their_scaler.update()
        return their_scaler.get_scale()

    our_scaler = LossScaler(ScalerState(**{k.replace("init_scale", "scale"): v for k, v in settings.items()}))

    def our_step(loss, spoil):
        our_optimizer.zero_grad()
        our_scaler.scale(loss).backward()
        spoil()
        our_scaler.step(our_optimizer)
        return our_scaler.state.scale

    their_scales, their_parameters = train(their_step, theirs, overflows)
    our_scales, our_parameters = train(our_step, ours, overflows)
    assert our_scales == their_scales
    assert len(set(our_scales)) > 5
    assert torch.equal(our_parameters, their_parameters)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5), st.sampled_from([1.0, 65536.0, 2.0**127]))
@settings(max_examples=60)
def test_decisions_are_torch_s(overflows, interval, start):
    scale, tracker = torch.tensor(start), torch.tensor(0, dtype=torch.int32)
    state = ScalerState(scale=start, growth_interval=interval)
    for overflow in overflows:
        torch._amp_update_scale_(scale, tracker, torch.tensor(float(overflow)), 2.0, 0.5, interval)
        state = after_step(state, overflow)
        assert (state.scale, state.clean_steps) == (float(scale), int(tracker))


def test_a_scale_at_the_end_of_float32_stays():
    state = ScalerState(scale=2.0**127, growth_interval=1)
    assert after_step(state, False).scale == 2.0**127


def test_when_every_step_overflows_the_scaler_says_so_before_the_scale_is_gone():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), LossScaler()
    with pytest.raises(ScaleUnderflow, match="143 steps in a row overflowed"):
        for _ in range(1000):
            weight.grad = torch.tensor([1.0, math.inf, 0.0])
            scaler.step(optimizer)
    assert scaler.state.scale == SMALLEST_SCALE
    assert torch.equal(weight, torch.ones(3))


def test_a_report_tells_nan_from_overflow():
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), LossScaler(ScalerState(scale=8.0))
    weight.grad = torch.tensor([8.0, math.inf, -math.inf, 0.0])
    report = scaler.step(optimizer)
    assert (report.skipped, report.scale, report.infinite, report.nan) == (True, 8.0, 2, 0)
    assert str(report) == "step skipped at scale 8: 2 infinite and 0 NaN gradients; the scale is now 4"
    weight.grad = torch.tensor([math.nan, 0.0, 0.0, 0.0])
    assert "the scale is now 2, but NaN is no overflow: look at the forward pass" in str(scaler.step(optimizer))
    assert scaler.state.skipped_steps == 2
    weight.grad = torch.full((4,), 2.0)
    assert str(scaler.step(optimizer)) == "step taken at scale 2"
    assert weight.tolist() == [0.0] * 4
    assert scaler.state.skipped_steps == 0


def test_a_report_names_the_scale_that_comes_next_whatever_the_factor():
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.tensor([math.inf])
    scaler = LossScaler(ScalerState(scale=1024.0, backoff_factor=0.25))
    report = scaler.step(torch.optim.SGD([weight], lr=1.0))
    assert report.next_scale == scaler.state.scale == 256.0
    assert str(report).endswith("the scale is now 256")


@pytest.mark.parametrize("given", [12345.678901, 0.1, 1e5 / 3, SMALLEST_SCALE * (1 - 2**-30)])
def test_a_scale_is_rounded_to_float32_as_torch_s_is(given):
    theirs = torch.amp.GradScaler("cpu", init_scale=given)
    theirs.scale(torch.zeros(()))
    assert ScalerState(scale=given).scale == theirs.get_scale()


def test_small_gradients_survive_float16_only_with_a_scale():
    def gradient(scale):
        x = torch.tensor([1e-9], dtype=torch.float16).float()  # what is left of it in float16
        weight = torch.nn.Parameter(torch.ones(1))
        (weight.half() * torch.tensor([1e-4], dtype=torch.float16) * scale).float().mul(1e-4).sum().backward()
        return float(weight.grad) / scale, float(x)

    lost, zero = gradient(1.0)
    kept, _ = gradient(2.0**14)
    assert lost == zero == 0.0
    assert kept == pytest.approx(1e-8, rel=1e-2)


def test_float16_gradients_are_refused_and_masters_take_them():
    model = torch.nn.Linear(4, 2, dtype=torch.float16)
    scaler = LossScaler(ScalerState(scale=1024.0))
    model.weight.grad = torch.ones_like(model.weight)
    with pytest.raises(TypeError, match="float16 gradient"):
        scaler.step(torch.optim.SGD(model.parameters(), lr=1.0))
    masters = MasterWeights(model.parameters(), lambda p: torch.optim.SGD(p, lr=1.0))
    masters.zero_grad()
    before = [m.detach().clone() for m in masters.masters]
    scaler.scale((model(torch.ones(1, 4, dtype=torch.float16)).float() * 2.0**-20).sum()).backward()
    assert not scaler.step(masters).skipped
    assert all(bool((m < b).all()) for m, b in zip(masters.masters, before, strict=True))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.ones(2, dtype=torch.float16), "a float16 gradient"),
        (lambda: torch.ones(2, dtype=torch.complex64), "complex64 gradient"),
        (lambda: torch.eye(2).to_sparse_csr(), "sparse_csr"),
    ],
    ids=["float16", "complex64", "compressed rows"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_a_gradient_that_is_refused_leaves_the_others_as_they_were(make, words):
    refused = make()
    weights = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones_like(refused))]
    weights[0].grad, weights[1].grad = torch.full((2,), 65536.0), refused
    scaler = LossScaler()
    for _ in range(2):
        with pytest.raises(TypeError, match=words):
            scaler.step(torch.optim.SGD(weights, lr=1.0))
    assert weights[0].grad.tolist() == [65536.0] * 2
    assert scaler.state == ScalerState()


@pytest.mark.parametrize("spoil", [None, math.inf, math.nan])
def test_sparse_gradients_follow_torch(spoil):
    tokens, scale = torch.tensor([1, 3, 1, 1]), 1000.0  # a row met three times; no power of two
    tables, scales = [], []
    for ours in (True, False):
        torch.manual_seed(0)
        table = torch.nn.Embedding(5, 3, sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        scaler = LossScaler(ScalerState(scale)) if ours else torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale((table(tokens) * torch.randn(4, 3)).sum()).backward()
        if spoil is not None:
            table.weight.grad._values()[2, 1] = spoil
        report = scaler.step(optimizer)
        if ours:
            assert report.skipped == (spoil is not None)
            assert (report.infinite, report.nan) == (int(spoil == math.inf), int(spoil is not None and spoil != spoil))
            scales.append(scaler.state.scale)
        else:
            scaler.update()
            scales.append(scaler.get_scale())
        tables.append(table.weight.detach())
    assert torch.equal(*tables)
    assert scales[0] == scales[1]


def test_no_gradient_and_impossible_settings_are_named():
    with pytest.raises(ValueError, match="no parameter has a gradient"):
        LossScaler().step(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0))
    for field, value in (
        ("scale", 0.0),
        ("scale", math.inf),
        ("scale", 1e39),
        ("growth_factor", 1.0),
        ("backoff_factor", 1.0),
    ):
        with pytest.raises(ValueError, match=field):
            ScalerState(**{field: value})
    with pytest.raises(ValueError, match="growth_interval = 0"):
        ScalerState(growth_interval=0)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_element_that_is_not_finite_is_found_wherever_it_is(bad, dtype):
    tensors = [torch.zeros(0), torch.randn(3, 5).to(dtype), torch.full((7,), torch.finfo(torch.float32).max)]
    assert _all_finite(tensors) and _all_finite([]) and _all_finite(tensors[:1])
    for element in range(15):
        spoiled = tensors[1].clone()
        spoiled.view(-1)[element] = bad
        assert not _all_finite([tensors[0], spoiled, tensors[2]])
