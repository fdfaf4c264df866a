"""Float32 masters: 16-bit weights that follow float32 training, and the update that is lost without them."""

import copy
import gc
import io
import weakref

import numpy as np
import pytest
import torch
from threeloops.inner.precision.amp import MasterWeights, stored_as
from threeloops.inner.precision.formats import FLOAT_FORMATS

LOW = [torch.float16, torch.bfloat16]


def sgd(parameters, lr=2.0**-12):
    return torch.optim.SGD(parameters, lr=lr)


@pytest.mark.parametrize("dtype", LOW)
def test_masters_take_every_step_that_float32_takes(dtype):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(40).to(dtype))
    single = torch.nn.Parameter(weight.detach().float())
    masters, plain = MasterWeights([weight], torch.optim.AdamW), torch.optim.AdamW([single])
    for _ in range(50):
        gradient = torch.randn(40).to(dtype)
        masters.zero_grad()
        (weight * gradient).sum().backward()
        masters.step()
        single.grad = gradient.float()
        plain.step()
        assert torch.equal(masters.masters[0], single)
        assert torch.equal(weight, single.detach().to(dtype))


def test_bfloat16_alone_stands_still_where_masters_arrive():
    alone = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    helped = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizers = [sgd([alone]), MasterWeights([helped], sgd)]
    for _ in range(2**12):
        for weight, optimizer in zip((alone, helped), optimizers, strict=True):
            optimizer.zero_grad()
            (-weight).sum().backward()
            optimizer.step()
    assert (alone.item(), helped.item()) == (1.0, 2.0)


def test_torch_keeps_no_masters():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    kept = [v for v in optimizer.state[weight].values() if v.shape == weight.shape]
    assert {v.dtype for v in kept} == {torch.bfloat16}


def test_gradients_are_accumulated_in_float32_and_freed():
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    masters = MasterWeights([weight], sgd)
    for gradient in (256.0, 1.0, 1.0, 1.0):
        (weight * gradient).sum().backward()
        assert weight.grad is None
    assert masters.masters[0].grad.item() == 259.0  # in bfloat16: 256


def test_float32_parameters_are_their_own_masters_and_frozen_ones_have_none():
    layer = torch.nn.Linear(2, 2)
    frozen = torch.nn.Parameter(torch.ones(1, dtype=torch.float16), requires_grad=False)
    masters = MasterWeights([*layer.parameters(), frozen], sgd)
    assert [m is p for m, p in zip(masters.masters, layer.parameters(), strict=True)] == [True, True]
    with pytest.raises(ValueError, match="none needs a gradient"):
        MasterWeights([frozen], sgd)


def test_a_saved_state_resumes_exactly_and_a_wrong_one_is_named():
    def fresh():
        torch.manual_seed(3)
        weight = torch.nn.Parameter(torch.randn(5).bfloat16())
        return weight, MasterWeights([weight], lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9))

    def go_on(weight, masters, steps):
        for _ in range(steps):
            masters.zero_grad()
            (weight**2).sum().backward()
            masters.step()

    weight, masters = fresh()
    go_on(weight, masters, 7)
    saved = masters.state_dict()
    go_on(weight, masters, 7)
    resumed, again = fresh()
    again.load_state_dict(saved)
    go_on(resumed, again, 7)
    assert torch.equal(resumed, weight)
    assert torch.equal(again.masters[0], masters.masters[0])
    with pytest.raises(ValueError, match=r"expected \[\(5,\)\]"):
        again.load_state_dict(saved | {"masters": [torch.zeros(6)]})


def test_a_state_that_the_optimizer_refuses_changes_neither_masters_nor_model():
    def layer(groups):
        model = torch.nn.Linear(3, 3).bfloat16()
        return model, MasterWeights(model.parameters(), lambda p: sgd(groups(p)))

    _, whole = layer(lambda p: p)
    model, halves = layer(lambda p: [{"params": p[:1]}, {"params": p[1:]}])
    before = [t.detach().clone() for t in (*model.parameters(), *halves.masters)]
    with pytest.raises(ValueError, match="different number of parameter groups"):
        halves.load_state_dict(whole.state_dict())
    assert all(map(torch.equal, before, (*model.parameters(), *halves.masters)))


def test_masters_made_a_second_time_take_over():
    """As a notebook's cell does that is run again."""
    model = torch.nn.Linear(4, 4).bfloat16()
    older, newer = (MasterWeights(model.parameters(), sgd) for _ in range(2))
    model(torch.ones(2, 4).bfloat16()).sum().backward()
    assert [m.grad for m in older.masters] == [None, None]
    assert [m.grad.dtype for m in newer.masters] == [torch.float32] * 2
    newer.step()
    stepped = [p.detach().clone() for p in model.parameters()]
    for act in (older.step, lambda: older.load_state_dict(newer.state_dict())):
        with pytest.raises(RuntimeError, match="2 of 2 parameters hand their gradients to newer masters"):
            act()
    assert all(map(torch.equal, stepped, model.parameters()))


def test_masters_that_nobody_holds_are_freed_and_leave_the_gradient_to_the_model():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    masters = MasterWeights([weight], sgd)
    master = weakref.ref(masters.masters[0])
    del masters
    gc.collect()
    assert master() is None
    weight.sum().backward()
    assert weight.grad.tolist() == [1.0] * 3


def test_a_model_with_masters_can_be_copied_and_saved_whole():
    model = torch.nn.Linear(2, 2).bfloat16()
    masters = MasterWeights(model.parameters(), sgd)
    torch.save(model, file := io.BytesIO())
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        other(torch.ones(1, 2).bfloat16()).sum().backward()
        assert other.weight.grad is not None and masters.masters[0].grad is None
    _, copied = copy.deepcopy((model, masters))  # hooks are not copied: it would stand still
    with pytest.raises(RuntimeError, match="make a new one"):
        copied.step()


def test_a_parameter_given_twice_has_one_master():
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    masters = MasterWeights([weight, weight], lambda p: sgd(p, lr=0.5))
    weight.sum().backward()
    masters.step()
    assert len(masters.masters) == 1 and weight.item() == 0.5


@pytest.mark.parametrize("dtype", [*LOW, torch.float8_e5m2])
def test_stored_as_rounds_the_value_and_the_gradient(dtype):
    format = FLOAT_FORMATS[str(dtype).removeprefix("torch.")]
    values = torch.tensor([1e-9, 1.003, -3.3e4, 7e4, 0.1])
    x = values.clone().requires_grad_()
    y = stored_as(x, dtype)
    np.testing.assert_array_equal(y.detach().numpy(), format.rounded(values.numpy()))
    (y * values).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), format.rounded(values.numpy()))
    assert stored_as(x, torch.float32) is x
