"""The autocast policy: the lists are those of the installed PyTorch, and its CPU autocast does what the policy says."""

import re
from functools import reduce
from pathlib import Path

import pytest
import torch
from threeloops.inner.precision.amp import GPU_POLICY, Treatment
from torch.nn import functional


def compute_dtype(operator, inputs, low):
    """The dtype in which `operator` computes on float16, bfloat16 or float32 inputs under autocast to `low`."""
    treatment = GPU_POLICY.treatment(operator)
    assert treatment is not Treatment.REFUSED
    return {Treatment.LOW: low, Treatment.FLOAT32: torch.float32}.get(treatment, reduce(torch.promote_types, inputs))


HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
LISTS = {"LOWER_PRECISION_FP": "low", "FP32": "float32", "FP32_SET_OPT_DTYPE": "float32", "PROMOTE": "promote"}
KERNELS = {  # operators by a name of their own, as a call on float16 and float32 tensors
    "matmul": lambda low, single: torch.matmul(low, single),
    "linear": lambda low, single: functional.linear(low, single),
    "conv2d": lambda low, single: functional.conv2d(low.view(1, 1, 4, 4), single.view(1, 1, 4, 4)),
    "mse_loss": lambda low, single: functional.mse_loss(low, low),
}


@pytest.mark.skipif(not HEADER.exists(), reason="this PyTorch ships without its headers")
def test_the_lists_are_pytorch_s_own():
    text = HEADER.read_text()
    theirs: dict[str, set[str]] = {}
    for macro, name in LISTS.items():
        body = re.search(rf"#define AT_FORALL_{macro}\(_\)(.*?)\n\n", text, re.S).group(1)
        theirs.setdefault(name, set()).update(re.findall(r"_\((\w+)", body))
    assert GPU_POLICY.low == theirs["low"]
    assert GPU_POLICY.float32 - {"norm"} == theirs["float32"]  # norm has an entry of its own kind
    assert GPU_POLICY.promote - {"cat", "stack"} == theirs["promote"]  # and so have lists of tensors


def test_no_operator_is_in_two_lists():
    lists = [GPU_POLICY.low, GPU_POLICY.float32, GPU_POLICY.promote, GPU_POLICY.refused]
    assert sum(map(len, lists)) == len(frozenset().union(*lists))


@pytest.mark.parametrize("operator", KERNELS)
def test_cpu_autocast_computes_in_the_dtype_that_the_policy_names(operator):
    low, single = torch.randn(4, 4).bfloat16(), torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = KERNELS[operator](low, single).dtype
    inputs = [low.dtype] if operator == "mse_loss" else [low.dtype, single.dtype]
    assert found == compute_dtype(operator, inputs, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="autocast's own policy for GPUs needs one")
@pytest.mark.parametrize("operator", ["mm", "exp", "sum", "softmax", "layer_norm", "addcmul", "relu", "cat"])
def test_cuda_autocast_computes_in_the_dtype_that_the_policy_names(operator):
    low, single = torch.rand(4, 4, device="cuda").half(), torch.rand(4, 4, device="cuda")
    calls = {
        "mm": lambda: torch.mm(single, single),
        "exp": lambda: torch.exp(low),
        "sum": lambda: torch.sum(low),
        "softmax": lambda: torch.softmax(low, -1),
        "layer_norm": lambda: functional.layer_norm(low, (4,)),
        "addcmul": lambda: torch.addcmul(single, low, low),
        "relu": lambda: torch.relu(low),
        "cat": lambda: torch.cat([low, single]),
    }
    given = {"mm": [single, single], "addcmul": [single, low, low], "cat": [low, single]}.get(operator, [low])
    with torch.autocast("cuda", dtype=torch.float16):
        found = calls[operator]().dtype
    assert found == compute_dtype(operator, [t.dtype for t in given], torch.float16)


def test_treatments():
    assert [GPU_POLICY.treatment(op) for op in ("linear", "softmax", "cat", "relu", "binary_cross_entropy")] == [
        Treatment.LOW, Treatment.FLOAT32, Treatment.PROMOTE, Treatment.AS_IS, Treatment.REFUSED,
    ]  # fmt: skip
