"""What admission replaces or leaves out: names of the cell, and parts of a kernel that have no effect on its result.

None of it is ever executed where kernels are judged, so anything may stand there; each case holds something hostile.
"""

import ast

import pytest
from threeloops.inner.replay.allowlist.admit import NotAdmitted, admit

CELL = """\
{above}


@triton.jit
def helper(a):
    return a


@triton.jit
def kernel(a, out):
    {body}
"""

DOUBLING = "\n".join(
    ["A0 = tl.constexpr((1, 1))", *(f"A{n} = tl.constexpr((A{n - 1}, A{n - 1}))" for n in range(1, 60))]
)
NOT_A_CONSTANT = "the name 'X', which is not its own"

NAMES = {
    "core by another name": ("import triton.language.core as c", "c.builtins.open('x')", "tl.core"),
    "builtins out of core": ("from triton.language.core import builtins as b", "b.open('x')", "tl.core"),
    "open by another name": ("from builtins import open as load", "load('x')", "call of load"),
    "a function of another module under tl's name": ("from os import system as exp", "exp(a)", "call of exp"),
    "a module under the name of an alias": ("import os as L", "L.system('x')", "the name 'L'"),
    "an alias with two meanings": ("import triton.language as L\nimport os as L", "L.system('x')", "the name 'L'"),
    "an alias bound anew": ("import triton.language as L\nL = evil()", "L.load(a)", "the name 'L'"),
    "an alias of an alias": ("import triton.language as L\nc = L.core\nb = c.builtins", "b.open('x')", "tl.core"),
    "an alias of a kernel's function": ("f = helper.fn", "f(a)", "kernel helper as a value"),
    "an alias of a builtin": ("f = open", "f('x')", "call of f"),
    "a module inside of math": ("from triton.language import math as m", "m.core.builtins.open('x')", "tl.math.core"),
    "triton's runtime": ("from triton import runtime as r", "r.driver.active()", "triton.runtime"),
    "libdevice": ("from triton.language.extra import libdevice", "libdevice.exp(a)", "tl.extra"),
    "everything of another module": ("from os import *", "system('x')", "call of system"),
    "a relative import": ("from .language import load", "load(a)", "call of load"),
    "a path without end": ("x0 = tl.a" + ".a" * 99, "x0.b(a)", "the name 'x0'"),
    "a constant that calls": ("X = tl.constexpr(evil())", "x = X", NOT_A_CONSTANT),
    "an annotated constant that calls": ("X: tl.constexpr = evil()", "x = X", NOT_A_CONSTANT),
    "a constant of a list that calls": ("X = tl.constexpr([evil()])", "x = X", NOT_A_CONSTANT),
    "a power without end": ("X = tl.constexpr(9**9**9)", "x = X", NOT_A_CONSTANT),
    "a number of many bits": ("X = 1 << 10**9", "x = X", NOT_A_CONSTANT),
    "a text without end": ("X = 'a' * 10**9", "x = X", NOT_A_CONSTANT),
    "a list without end": ("X = tl.constexpr([0] * 10**9)", "x = X", NOT_A_CONSTANT),
    "a table of results": (f"X = tl.constexpr({tuple(range(500))})", "x = X", NOT_A_CONSTANT),
    "constants that double": (DOUBLING, "x = A59", "the name 'A59'"),
    "a constant of a module": ("X = tl.constexpr(tl.core)", "x = X", NOT_A_CONSTANT),
    "a constant that is a module": ("X = tl.core", "x = X", "tl.core"),
    "a constant of a function": ("X = tl.constexpr(tl.load)", "x = X", NOT_A_CONSTANT),
    "a constant of a lambda": ("X = tl.constexpr((lambda: 1)())", "x = X", NOT_A_CONSTANT),
    "a constant of an attribute": ("X = tl.constexpr((1).__class__)", "x = X", NOT_A_CONSTANT),
    "a constant of a complex number": ("X = tl.constexpr((-8) ** 0.5)", "x = X", NOT_A_CONSTANT),
    "a constant of one that changes": ("Z = 1\nX = tl.constexpr(Z)\nZ = 2", "x = X", NOT_A_CONSTANT),
    "a plain table, which Triton does not read": ("X = (1, 2)", "x = X[0]", NOT_A_CONSTANT),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMES)
def test_a_name_of_the_cell_reaches_kernels_literals_and_tl_alone(case):
    above, body, says = NAMES[case]
    with pytest.raises(NotAdmitted, match=says):
        admit(CELL.format(above=above, body=body))


HEAD = "@triton.jit\ndef k(a):\n    "
NEVER_EXECUTED = {
    "annotations": "@triton.jit\ndef k(a: evil(), b: (evil := 1)):\n    pass",
    "annotations as texts": "@triton.jit\ndef k(a: 'evil()', b: '*evil'):\n    pass",
    "a text that mentions constexpr": "@triton.jit\ndef k(a: 'evil(tl.constexpr)'):\n    pass",
    "a call that is given tl.constexpr": "@triton.jit\ndef k(a: evil(tl.constexpr)):\n    pass",
    "a subscript of tl.constexpr": "@triton.jit\ndef k(a: tl.constexpr[evil()]):\n    pass",
    "an annotation of the result": "@triton.jit\ndef k(a) -> evil():\n    pass",
    "an annotation of a variable": HEAD + "x: evil() = 1",
    "an annotation of a constant": "X: evil() = 1\n" + HEAD + "x = a + X",
    "a function that names the kernel": "@triton.jit(repr=lambda s: evil())\ndef k(a):\n    pass",
    "a function that describes a launch": "@triton.jit(launch_metadata=evil())\ndef k(a):\n    pass",
    "a version": "@triton.jit(version=evil(), debug=evil())\ndef k(a):\n    pass",
    "tuners": "@triton.autotune(evil(), key=evil)\n@triton.heuristics({'a': evil})\n@triton.jit\ndef k(a):\n    pass",
    "prints": HEAD + "print(evil())\n    tl.device_print(evil(), a)\n    tl.static_print(evil())",
    "a print by another name": "from triton.language import device_print as p\n" + HEAD + "p(evil())",
    "a docstring and other bare texts": HEAD + "'evil()'\n    f'{evil()}'\n    'evil()'\n    ...",
    "a type comment": "@triton.jit\ndef k(a):  # type: evil()\n    pass",
    "hints for a loop": HEAD + "while tl.condition(a, disable_licm=evil()):\n        a = a - 1",
}  # fmt: skip


@pytest.mark.parametrize("case", NEVER_EXECUTED)
def test_what_has_no_effect_on_the_result_is_left_out_of_the_text(case):
    text = admit(NEVER_EXECUTED[case]).text
    assert "evil" not in text
    assert "def k(" in text


MESSAGES = ["f'{evil()}'", "evil()", "'a' + evil()", "f'''\ndef k(a):\n    evil()'''", "'%s' % evil", "'plain'"]


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("form", ["assert a, {}", "tl.static_assert(1, {})", "tl.device_assert(a, msg={})"])
def test_the_message_of_an_assertion_becomes_a_text_on_the_same_line(form, message):
    text = admit(HEAD + form.format(message)).text
    (call,) = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and "assert" in ast.unparse(n.func)]
    given = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
    assert [type(each) for each in given] == [ast.Constant]
    assert text.split("\n")[2].strip() == ast.unparse(call)


ANNOTATIONS = {
    "tl.constexpr": "tl.constexpr", "'tl.constexpr'": "tl.constexpr", "tl.constexpr | None": "tl.constexpr",
    "Optional[tl.constexpr]": "tl.constexpr", "triton.language.constexpr": "tl.constexpr", "int": "tl.int32",
    "float": "tl.float32", "bool": "tl.int1", "tl.int64": "tl.int64", "'*fp32'": "'*fp32'", "'i64'": "'i64'",
    "tl.const": "tl.const", "torch.Tensor": None, "'torch.Tensor'": None, "str": None, "list[int]": None, "1": None,
}  # fmt: skip


@pytest.mark.parametrize("annotation", ANNOTATIONS)
def test_of_an_annotation_the_part_that_triton_acts_on_is_kept(annotation):
    kept = ANNOTATIONS[annotation]
    text = admit(f"@triton.jit\ndef k(a: {annotation} = 1):\n    pass").text
    assert ("def k(a=1):" if kept is None else f"def k(a: {kept}=1):") in text


SENTENCES = {
    "x = lambda: 1": "define it at the top level of the cell, under @triton.jit",
    "for i in range(3):\n        break": "Triton compiles no break: use while, and put its condition there",
    "for i in range(3):\n        continue": "Triton compiles no continue: use if",
    "for i in range(3):\n        pass\n    else:\n        pass": "write the statements after the loop",
    "x = (y := 1)": "assign on a line of its own",
    "with a:\n        pass": "write the statements without it",
    "try:\n        pass\n    finally:\n        pass": "write a mask, or tl.device_assert",
    "raise a": "write a mask, or tl.device_assert",
    "del a": "leave the variable as it is",
    "global x": "take the value as an argument, and return or store it",
    "import os": "import at the top level of the cell",
    "x = {}": "use one variable for each value, or a tuple",
    "x = {1}": "use one variable for each value, or a tuple",
    "x = {i for i in (1, 2)}": "write a loop over tl.static_range",
    "match a:\n        case 1:\n            pass": "use if and elif",
    "yield a": "Triton compiles no generators: return a value",
    "class A:\n        pass": "use variables and tuples",
    "x: tl.constexpr": "assign a value on the same line",
    "x = (*a, 1)": "write the elements one by one",
    "x = f'{a}'": "an f-string may only be the message of an assertion or of a print",
    "x = getattr(a, 'shape')": "write the attribute's name behind a dot",
    "a + 1": "it has no effect: remove it",
    "tl = a": "that name is a module's: choose another",
    "__x = a": "names that begin with __ are Python's: choose another",
}


@pytest.mark.parametrize("body", SENTENCES)
def test_a_refusal_says_what_to_write_instead(body):
    with pytest.raises(NotAdmitted) as refused:
        admit(HEAD + body)
    assert str(refused.value).endswith(SENTENCES[body])


SIGNATURES = ("*, a", "*a", "**a")


@pytest.mark.parametrize("signature", SIGNATURES)
def test_arguments_that_triton_does_not_compile_are_refused_with_the_way_to_write_them(signature):
    with pytest.raises(NotAdmitted, match="Triton compiles none of them: name each argument, without"):
        admit(f"@triton.jit\ndef k({signature}):\n    pass")
