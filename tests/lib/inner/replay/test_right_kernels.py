"""Admission refuses nothing that is right: kernels in every style that Triton compiles are admitted, and mean the same.

The right answers of labs 02 to 04 are rewritten in each style. Small kernels are also executed in the interpreter.
"""

import ast
from functools import cache

import pytest
import torch
import triton.language as tl
from right_kernels import REWRITES, SMALL, meaning
from threeloops.inner import interpreter
from threeloops.inner.codegen import compile_launches, from_source
from threeloops.inner.launches import Launch, TensorArgument
from threeloops.inner.replay.allowlist.admit import admit
from threeloops_grader.authoring.answers import right_answers
from threeloops_grader.authoring.labs import find_lab

RIGHT = [
    answer for lab in ("02", "03", "04") for answer in right_answers(find_lab(lab)) if "@triton.jit" in answer.text
]


@cache
def meaning_of(cell: str) -> dict[str, str]:
    return meaning(admit(cell).text)


@pytest.mark.parametrize("answer", RIGHT, ids=lambda answer: answer.name)
@pytest.mark.parametrize("style", REWRITES)
def test_a_right_answer_is_admitted_in_every_style_and_means_the_same(answer, style):
    cell = REWRITES[style](answer.text)
    assert meaning(admit(cell).text) == meaning_of(answer.text)


def test_there_are_answers_to_every_exercise_with_kernels():
    exercises = {answer.exercise for answer in RIGHT}
    assert len(RIGHT) >= 30
    assert exercises >= {"saxpy", "transpose", "matmul", "softmax", "cross_entropy", "bias_gelu", "one_head", "masked"}


@pytest.mark.skipif(not interpreter.enable_without_gpu(), reason="kernels are compiled in this process")
@pytest.mark.parametrize("name", SMALL)
def test_a_small_kernel_in_an_unusual_form_computes_what_it_should(name):
    kernel = admit(SMALL[name].cell()).load().kernel
    x = torch.linspace(-2, 3, 64)
    out = torch.full_like(x, torch.nan)
    kernel[(1,)](x, out, 64, BLOCK=64)
    torch.testing.assert_close(out, SMALL[name].expected(x))


@pytest.mark.parametrize("name", SMALL)
def test_a_small_kernel_in_an_unusual_form_compiles(name):
    """The forms are right: Triton's compiler takes what admission writes for them."""
    admitted = admit(SMALL[name].cell())
    kernel = admitted.kernels["kernel"]
    (function,) = [n for n in ast.parse(admitted.text).body if isinstance(n, ast.FunctionDef) and n.name == "kernel"]
    defaults = [eval(ast.unparse(default), {"tl": tl}) for default in function.args.defaults]
    tile = [TensorArgument("float32", (64,), (1,), storage, 0, 256, 16) for storage in range(2)]
    given = dict(zip(kernel.parameters, [*tile, 64, 64, *defaults], strict=True))
    arguments = {name: value for name, value in given.items() if name not in kernel.constants}
    constants = {name: value for name, value in given.items() if name in kernel.constants}
    text = from_source(admitted.text, "kernel", admitted.file)
    launch = Launch("kernel", (1,), arguments, constants, {}, "admitted", admitted.file, kernel.line, kernel=text)
    (code,) = compile_launches([launch], ["sm_90"], seconds=60)
    assert code.registers
