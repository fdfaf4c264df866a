"""How kernels are judged: by their error against float64, next to that of PyTorch's own operator at the same dtype.

A fixed tolerance says nothing: 1e-2 is generous for one kernel and unreachable for another. PyTorch's operator has met
the same rounding with the same input bits, so a kernel may err 1.05 times as much (RMS) in 16 bits, 3 times in float32.
"""

import pytest
import torch
from threeloops.hardware import device as chosen_device
from threeloops.inner import interpreter

LIMITS = {  # root mean square, maximum
    torch.float16: (1.05, 2.0),
    torch.bfloat16: (1.05, 2.0),
    torch.float32: (3.0, 3.0),
}


@pytest.fixture(scope="session")
def device():
    """Where the kernels run: a GPU, else the CPU under Triton's interpreter."""
    return chosen_device()


@pytest.fixture
def interpreted():
    """Skips on a GPU: compiled kernels cannot be metered."""
    if not interpreter.interpreted():
        pytest.skip("the traffic meter needs Triton's interpreter; here kernels are compiled for a GPU")


@pytest.fixture
def normal(device):
    """normal(*shape, dtype=…, seed=…): numbers that are the same on every device."""

    def make(*shape, dtype=torch.float32, seed=0, scale=1.0):
        generator = torch.Generator().manual_seed(seed)
        return (scale * torch.randn(shape, generator=generator)).to(dtype).to(device)

    return make


@pytest.fixture
def as_accurate_as():
    """as_accurate_as(actual, exact, peer): `actual` errs at most LIMITS times as much as `peer` does, against `exact`.

    `exact` is float64. Where the peer is exact by luck, an error of the order of the dtype's rounding is granted, which
    no kernel can avoid.
    """

    def judge(actual, exact, peer, *, what="output"):
        assert actual.dtype == peer.dtype, f"{what} is {actual.dtype}, torch gives {peer.dtype}"
        assert actual.shape == exact.shape, f"{what} has shape {tuple(actual.shape)}, expected {tuple(exact.shape)}"
        if exact.numel() == 0:
            return
        exact = exact.detach().double().cpu()
        error, peer_error = ((each.detach().double().cpu() - exact).abs() for each in (actual, peer))
        assert torch.isfinite(error).all(), f"{what} has {int((~error.isfinite()).sum())} values that are not finite"
        rounding = exact.abs() * torch.finfo(actual.dtype).eps / 2
        for name, summary, factor in zip(("RMS", "maximum"), (rms, torch.max), LIMITS[actual.dtype], strict=True):
            ours, theirs, least = (float(summary(each)) for each in (error, peer_error, rounding))
            assert ours <= factor * max(theirs, least), (
                f"{what}: {name} error {ours:.3g} is {ours / max(theirs, least, 1e-300):.2f} times torch's "
                f"{theirs:.3g} (rounding alone: {least:.3g}); allowed {factor}"
            )

    return judge


def rms(values):
    return values.square().mean().sqrt()


@pytest.fixture
def gradients():
    """gradients(function, inputs, dy): the gradients of all floating-point inputs; in float64 with `exact=True`."""

    def differentiate(function, inputs, dy, *, exact=False):
        leaves = [each.double() if exact else each.clone() for each in inputs]
        leaves = [each.requires_grad_() for each in leaves]
        return torch.autograd.grad(function(*leaves), leaves, dy.double() if exact else dy)

    return differentiate


@pytest.fixture
def least_traffic(interpreted):
    """least_traffic(entry): at its metered shapes an entry moves what its cost says, and nothing goes wrong."""
    from threeloops.inner.meter import meter

    def judge(entry, dtype=torch.float16):
        for shape in entry.metered:
            inputs = entry.inputs(shape, dtype, "cpu", 0)
            with meter() as traffic:
                entry.launch(*inputs)
            least = entry.cost(shape, dtype).bytes
            assert traffic.total.unique_bytes == pytest.approx(least, rel=0.02), dict(shape)
            assert traffic.total.atomics == 0
            assert not traffic.findings, traffic.findings

    return judge


@pytest.fixture
def clean_code():
    """clean_code(entry, target): what is shipped compiles without spills, fits, and moves 16 bytes at a time.

    Returns the codes of the entry's first compiled shape. No GPU is needed: the compiler runs in a process of its own.
    """
    from threeloops.inner.codegen import inspect

    def judge(entry, target, dtype=torch.bfloat16):
        inputs = entry.inputs(entry.compiled[0], dtype, "meta", 0)
        codes = inspect(lambda: entry.launch(*inputs), target)
        for code in codes:
            assert code.spilled_bytes == 0 and code.fits, code.report()
        assert max(code.widest_load for code in codes) == 128 and max(code.widest_store for code in codes) == 128
        return codes

    return judge


@pytest.fixture
def entry():
    """entry(name) of the row kernels' catalog."""
    from threeloops.inner.kernels.catalog import rows

    return {each.name: each for each in rows.entries()}.__getitem__
