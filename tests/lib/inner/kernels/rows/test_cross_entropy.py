"""Cross-entropy with its gradient, alone and together with the linear layer before it."""

import math

import pytest
import torch
from threeloops.inner.kernels.rows import cross_entropy as of_logits
from threeloops.inner.kernels.rows import fused_linear_cross_entropy as fused
from threeloops.inner.kernels.rows.cross_entropy import cost, cross_entropy, reference
from threeloops.inner.kernels.rows.fused_linear_cross_entropy import _chunk_size, fused_linear_cross_entropy
from threeloops.inner.launches import record
from torch.nn import functional

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SHAPES = ((1, 1), (17, 127), (9, 128), (8, 129), (3, 20_001))


@pytest.fixture
def problem(normal, device):
    """(logits, targets), every fourth target ignored."""

    def make(rows, vocabulary, dtype=torch.float32, ignored=True):
        logits = normal(rows, vocabulary, dtype=dtype, scale=3)
        targets = torch.arange(rows, device=device) * 7919 % vocabulary
        return logits, torch.where(torch.arange(rows, device=device) % 4 == 3, -100, targets) if ignored else targets

    return make


def with_z_loss(logits, targets, z_loss, reduction, **options):
    losses = functional.cross_entropy(logits, targets, reduction="none", **options)
    kept = targets != -100
    losses = losses + torch.where(kept, z_loss * logits.logsumexp(-1).square(), 0)
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.sum() / kept.sum()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values(problem, as_accurate_as, gradients, shape, dtype):
    logits, targets = problem(*shape, dtype)
    exact = functional.cross_entropy(logits.double(), targets)
    loss = cross_entropy(logits, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), exact, rtol=2e-6, atol=1e-6)
    one = torch.ones_like(loss)
    (dx,) = gradients(lambda x: cross_entropy(x, targets), [logits], one)
    (exact,) = gradients(lambda x: functional.cross_entropy(x, targets), [logits], one, exact=True)
    (peer,) = gradients(lambda x: functional.cross_entropy(x, targets), [logits], one.to(dtype))
    as_accurate_as(dx, exact, peer, what="dlogits")


@pytest.mark.parametrize("reduction", ("mean", "sum", "none"))
@pytest.mark.parametrize(("label_smoothing", "z_loss"), ((0.1, 0.0), (0.0, 1e-3), (0.2, 1e-2)))
def test_options(problem, normal, gradients, reduction, label_smoothing, z_loss):
    logits, targets = problem(13, 129)
    options = {"label_smoothing": label_smoothing, "z_loss": z_loss, "reduction": reduction}

    def exact(x):
        return with_z_loss(x, targets, z_loss, reduction, label_smoothing=label_smoothing)

    expected = exact(logits.double())
    torch.testing.assert_close(cross_entropy(logits, targets, **options).double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(reference(logits.double(), targets, **options), expected)
    factor = normal(*expected.shape, seed=5)  # what comes back is not always 1
    (dx,) = gradients(lambda x: cross_entropy(x, targets, **options), [logits], factor)
    (expected,) = gradients(exact, [logits], factor, exact=True)
    torch.testing.assert_close(dx.double(), expected, rtol=1e-5, atol=1e-6)


def test_in_place_changes_no_result(problem, normal):
    _, targets = problem(13, 129)
    hidden, weight = normal(13, 24), normal(129, 24, seed=1)
    results = []
    for in_place in (False, True):
        leaf = hidden.clone().requires_grad_()
        loss = cross_entropy(leaf @ weight.T, targets, in_place=in_place)
        loss.backward()
        results.append((loss.detach(), leaf.grad))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_in_place_makes_no_second_matrix(problem):
    logits, targets = problem(5, 129)
    _, gradient = of_logits.losses_and_gradient(logits, targets, None, in_place=True)
    assert gradient.data_ptr() == logits.data_ptr()
    expected = torch.softmax(problem(5, 129)[0], -1) - functional.one_hot(targets.clamp_min(0), 129)
    torch.testing.assert_close(logits, expected * (targets != -100)[:, None], rtol=1e-5, atol=1e-6)


def test_in_place_is_refused_where_it_would_spoil_something(problem):
    logits, targets = problem(5, 129)
    with pytest.raises(ValueError, match="in_place = True and logits is a leaf"):
        cross_entropy(logits.requires_grad_(), targets, in_place=True)
    kept = logits.exp()  # exp keeps its output for its own backward pass
    loss = cross_entropy(kept, targets, in_place=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(ValueError, match=r"strides \(1, 5\)"):
        cross_entropy((logits * 1).T.contiguous().T, targets, in_place=True)


def test_evaluation_leaves_the_logits_alone(problem):
    logits, targets = problem(5, 129)
    before = logits.clone()
    with torch.no_grad():
        cross_entropy(logits, targets, in_place=True)
    assert torch.equal(logits, before)


def test_a_second_backward_pass_is_refused(problem):
    logits, targets = problem(5, 129)
    loss = cross_entropy(logits.requires_grad_(), targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward pass"):
        loss.backward()


def test_a_target_outside_the_vocabulary_shows(problem):
    logits, targets = problem(4, 129)
    targets[1] = 129
    losses, gradient = of_logits.losses_and_gradient(logits, targets, None)
    assert losses.isnan().tolist() == [False, True, False, False]
    assert gradient.isnan().any(-1).tolist() == [False, True, False, False]


def test_other_ignore_index_and_all_rows_ignored(problem):
    logits, targets = problem(8, 33, ignored=False)
    ours = cross_entropy(logits, targets, ignore_index=int(targets[2]))
    torch.testing.assert_close(ours, functional.cross_entropy(logits, targets, ignore_index=int(targets[2])))
    leaf = logits.requires_grad_()
    loss = cross_entropy(leaf, torch.full_like(targets, -100))
    assert loss.isnan()  # as in torch: the mean of nothing
    assert cross_entropy(leaf, torch.full_like(targets, -100), reduction="sum") == 0


def test_masked_and_large_logits(device):
    vocabulary = 20_000  # the first block of it is masked altogether
    logits = torch.zeros(4, vocabulary, device=device)
    logits[0, : vocabulary // 2] = -math.inf
    logits[1] += 1e4
    logits[2, 7] = 1e4
    logits[3, -1] = -math.inf
    targets = torch.full((4,), vocabulary - 1, device=device)
    ours, theirs = logits.clone().requires_grad_(), logits.double().requires_grad_()
    losses = cross_entropy(ours, targets, reduction="none")
    expected = functional.cross_entropy(theirs, targets, reduction="none")
    assert losses[3] == math.inf
    torch.testing.assert_close(losses.double(), expected, rtol=1e-6, atol=0)
    losses.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-7)


def test_rows_may_lie_apart(problem, gradients):
    whole, targets = problem(9, 140)
    for view, picked in ((whole[:, :129], targets % 129), (whole[::2], targets[::2].contiguous())):
        ours, theirs = view.detach().requires_grad_(), view.detach().requires_grad_()
        picked = picked.clamp_min(0)
        loss, expected = cross_entropy(ours, picked), functional.cross_entropy(theirs, picked)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(torch.autograd.grad(loss, ours), torch.autograd.grad(expected, theirs))


def test_empty(device):
    logits = torch.empty(0, 5, device=device, requires_grad=True)
    loss = cross_entropy(logits, torch.empty(0, dtype=torch.int64, device=device), reduction="sum")
    loss.backward()
    assert loss == 0 and logits.grad.shape == (0, 5)


def test_errors_name_what_is_wrong(problem):
    logits, targets = problem(5, 129)
    for options, words in (
        ({"reduction": "max"}, "reduction = 'max': expected one of mean, sum, none"),
        ({"label_smoothing": 1.5}, "label_smoothing = 1.5"),
    ):
        with pytest.raises(ValueError, match=words):
            cross_entropy(logits, targets, **options)
    with pytest.raises(ValueError, match="targets is int32: expected int64"):
        cross_entropy(logits, targets.int())
    with pytest.raises(ValueError, match=r"targets has shape \(4,\): expected \(5,\)"):
        cross_entropy(logits, targets[:4])
    with pytest.raises(ValueError, match="reduction = 'none'.*use cross_entropy"):
        fused_linear_cross_entropy(logits, logits, targets, reduction="none")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk_rows", (None, 16, 1000))
def test_fused_linear(normal, device, as_accurate_as, gradients, dtype, chunk_rows):
    hidden, weight = normal(67, 48, dtype=dtype), normal(129, 48, dtype=dtype, seed=1, scale=0.1)
    targets = torch.arange(67, device=device) * 7 % 129
    targets[::5] = -100

    def theirs(hidden, weight):
        return functional.cross_entropy(hidden @ weight.T, targets)

    def ours(hidden, weight):
        return fused_linear_cross_entropy(hidden, weight, targets, chunk_rows=chunk_rows)

    torch.testing.assert_close(ours(hidden, weight), theirs(hidden.float(), weight.float()), rtol=1e-3, atol=1e-3)
    one = torch.ones((), device=device)
    exact = gradients(theirs, [hidden, weight], one, exact=True)
    peer = gradients(theirs, [hidden, weight], one.to(dtype))
    for what, *each in zip(("dhidden", "dweight"), gradients(ours, [hidden, weight], one), exact, peer, strict=True):
        as_accurate_as(*each, what=what)


def test_fused_linear_with_options_and_a_factor(normal, device, gradients):
    hidden, weight = normal(40, 24), normal(130, 24, seed=1)
    targets = torch.arange(40, device=device) * 7 % 130
    options = {"label_smoothing": 0.1, "z_loss": 1e-3, "reduction": "sum"}

    def ours(hidden, weight):
        return 3.0 * fused_linear_cross_entropy(hidden, weight, targets, chunk_rows=16, **options)

    def theirs(hidden, weight):
        return 3.0 * with_z_loss(hidden @ weight.T, targets, 1e-3, "sum", label_smoothing=0.1)

    one = torch.ones((), device=device)
    torch.testing.assert_close(ours(hidden, weight), theirs(hidden, weight), rtol=1e-5, atol=1e-3)
    expected = gradients(theirs, [hidden, weight], one, exact=True)
    for actual, exact in zip(gradients(ours, [hidden, weight], one), expected, strict=True):
        torch.testing.assert_close(actual.double(), exact, rtol=1e-4, atol=1e-4)


def test_fused_linear_never_has_more_logits_than_a_chunk(normal, device):
    hidden, weight = normal(100, 16).requires_grad_(), normal(256, 16, seed=1)  # a frozen weight
    assert _chunk_size(100, 16, 256) == 8  # 256 / 16 chunks: their logits are no larger than hidden
    with record() as launches:
        fused_linear_cross_entropy(hidden, weight, torch.zeros(100, dtype=torch.int64, device=device)).backward()
    losses = [launch for launch in launches if launch.name.endswith("cross_entropy_kernel")]
    assert [launch.arguments["logits_ptr"].shape for launch in losses] == [(8, 256)] * 12 + [(4, 256)]
    assert hidden.grad is not None and weight.grad is None


def test_fused_linear_evaluates_without_gradients(normal, device):
    hidden, weight = normal(10, 16).requires_grad_(), normal(33, 16, seed=1).requires_grad_()
    targets = torch.arange(10, device=device)
    with torch.no_grad():
        loss = fused_linear_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(loss, functional.cross_entropy(hidden @ weight.T, targets).detach())
    assert fused.reference(hidden, weight, targets).isclose(loss)


def test_traffic(entry, least_traffic):
    least_traffic(entry("cross_entropy"))
    least_traffic(entry("cross_entropy_and_gradient"))


@pytest.mark.parametrize("in_place", (False, True))
def test_logits_are_asked_for_twice_and_moved_once(interpreted, problem, in_place):
    from threeloops.inner.meter import meter

    logits, targets = problem(8, 20_000, torch.float16, ignored=False)
    with meter() as traffic:
        of_logits.losses_and_gradient(logits, targets, None, in_place=in_place)
    least, matrix = cost(8, 20_000), 2 * 8 * 20_000
    assert traffic.total.requested_bytes == pytest.approx(least.bytes + matrix, rel=1e-3)
    assert traffic.total.unique_bytes == pytest.approx(least.bytes, rel=1e-3)


def test_code(entry, clean_code):
    clean_code(entry("cross_entropy_and_gradient"), "sm_90")
