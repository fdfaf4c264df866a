"""Admission: kernels are arithmetic and nothing else, whatever the text of their cell looks like.

Each escape is the body of a kernel (or a whole cell) that would reach Python, the grader's process or another kernel's
bookkeeping; each must be refused by name and line. What Triton programmers write every day must be admitted.
"""

import ast
import importlib
import re
from pathlib import Path

import pytest
import threeloops.inner.kernels
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner.replay.allowlist import names as admission_names
from threeloops.inner.replay.allowlist.admit import PRELUDE, NotAdmitted, admit

HONEST = '''\
@triton.jit
def gelu(x):
    """The tanh form."""
    return 0.5 * x * (1 + tl.math.erf(x * RSQRT2))  # exact


RSQRT2: tl.constexpr = tl.constexpr(1 / math.sqrt(2))
UNUSED = [print("never run")]


def launcher(x):
    out = torch.empty_like(x)
    fused[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
    return out


@triton.autotune([triton.Config({"BLOCK": b}) for b in (64, 128)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit(do_not_specialize=["n"], debug=True)
def fused(
    x,
    out, n, eps=1e-5,
    EVEN: tl.constexpr = False, BLOCK: tl.constexpr = 64, ACTIVATION: tl.constexpr = "gelu",
):
    """
    Bias and activation.
    """
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    if EVEN: value = tl.load(x + offsets, eviction_policy="evict_first")
    elif ACTIVATION == "gelu":
        value = tl.load(x + offsets, mask=offsets < n, other=float("-inf")); value = gelu(
            value
        )
    else: value = -total
    for i in tl.static_range(2):
        total += (value + i
                  ).to(tl.float32)
    while i < 3:
        i += 1
    a, (b, c) = tl.reduce(total, 0, add), (1, None)
    total = tl.where(total > 0, total, 0.0) if BLOCK > 1 else total
    tl.static_assert(BLOCK <= 1024, "too large")
    tl.store(out + offsets, total.to(out.dtype.element_ty), mask=(offsets < n) & (total == total))


@triton.jit
def add(a, b):
    return a + b
'''


def lines_of(text: str) -> dict[str, int]:
    return {line.strip(): number for number, line in enumerate(text.split("\n"), 1) if line.strip()}


def test_what_triton_programmers_write_is_admitted_on_its_own_lines():
    admitted = admit(HONEST)
    assert set(admitted.kernels) == {"gelu", "fused", "add"}
    fused = admitted.kernels["fused"]
    assert fused.parameters == ("x", "out", "n", "eps", "EVEN", "BLOCK", "ACTIVATION")
    assert fused.constants == {"EVEN", "BLOCK", "ACTIVATION"}
    assert fused.uses == {"gelu", "add"}
    assert fused.line == lines_of(HONEST)["def fused("]
    written, cell = lines_of(admitted.text), lines_of(HONEST)
    assert admitted.text.startswith(PRELUDE + "\n")
    for line in ("total = tl.zeros([BLOCK], tl.float32)", "i += 1", "return a + b", "while i < 3:"):
        assert written[line] == cell[line]
    assert "RSQRT2 = tl.constexpr(0.7071067811865475)\n" in admitted.text
    assert "print" not in admitted.text and "lambda" not in admitted.text and "launcher" not in admitted.text
    assert "fused = triton.jit(do_not_specialize=['n'])(fused)" in admitted.text


def test_the_file_means_what_the_cell_means():
    """The same trees, without docstrings, decorators and annotations of position."""
    admitted = admit(HONEST)

    def trees(text):
        functions = {}
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name in admitted.kernels:
                node.decorator_list = []
                node.body = [
                    s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
                ]
                functions[node.name] = ast.dump(node)
        return functions

    assert trees(admitted.text) == trees(HONEST)


def test_only_what_is_launched_and_what_it_calls_is_looked_at():
    cell = HONEST + "\n\n@triton.jit\ndef broken(x):\n    tl.inline_asm_elementwise('x', x)\n"
    assert set(admit(cell, ["gelu"]).kernels) == {"gelu"}
    assert set(admit(cell, ["fused", "elsewhere"]).kernels) == {"fused", "gelu", "add"}
    with pytest.raises(NotAdmitted, match="broken uses tl.inline_asm_elementwise"):
        admit(cell)


def test_a_name_that_is_no_constant_is_refused_with_the_way_to_write_one():
    cell = "SIZES = [1, 2]\n\n\n@triton.jit\ndef f(x):\n    tl.store(x, SIZES)\n"
    with pytest.raises(NotAdmitted, match=r"line 6: f uses the name 'SIZES'.*HALF = tl\.constexpr\(0\.5\)"):
        admit(cell)


def test_loaded_kernels_run_and_their_errors_name_the_cells_lines():
    admitted = admit(HONEST, file="the_cell.py")
    module = admitted.load()
    assert {name for name in vars(module) if not name.startswith("__")} == {
        "math", "triton", "tl", "gelu", "fused", "add", "RSQRT2",
    }  # fmt: skip
    assert module.add.fn.__code__.co_filename == "the_cell.py"
    assert module.add.fn.__code__.co_firstlineno == lines_of(HONEST)["def add(a, b):"]


def test_magic_lines_are_passed_over():
    assert set(admit("%matplotlib inline\n!pip list\n" + HONEST).kernels) == {"gelu", "fused", "add"}
    assert admit("%time\n" + HONEST).kernels["add"].line == lines_of(HONEST)["def add(a, b):"] + 1


BODIES = {
    "an import": ("import os", "an import"),
    "an import from": ("from os import system", "an import"),
    "a module global of the interpreter": ("np.save('x', a)", "np"),
    "inspect, which the interpreter lends": ("inspect.currentframe()", "inspect"),
    "builtins by name": ("__builtins__['open']('x')", "__builtins__"),
    "open": ("open('x')", "open"),
    "eval": ("eval('1')", "eval"),
    "exec": ("exec('1')", "exec"),
    "getattr": ("getattr(a, 'handle')", "getattr"),
    "print as a value": ("x = print(a)", "a call of print; write print as a statement"),
    "globals": ("globals()", "globals"),
    "a handle": ("x = a.handle.data", r"\.handle"),
    "the handle itself": ("x = a.handle", r"\.handle"),
    "dunder class": ("x = a.__class__", "__class__"),
    "dunder of a number": ("x = (1).__class__", "__class__"),
    "core through tl": ("tl.core.builtins.open('x')", "tl.core"),
    "a submodule of tl": ("x = tl.core", "tl.core"),
    "extra": ("tl.extra.cuda.libdevice.exp(a)", "tl.extra"),
    "math as a value": ("x = tl.math", "tl.math"),
    "a module inside math": ("tl.math.core.builtins", "tl.math.core"),
    "wraps inside math": ("x = tl.math.wraps", "tl.math.wraps"),
    "inline assembly": ("tl.inline_asm_elementwise('', '', [a], tl.int32, True, 1)", "inline_asm"),
    "a tensor made by hand": ("tl.tensor(a, a)", "tl.tensor"),
    "a pointer made of a number": ("x = (8).to(tl.pointer_type(tl.int8))", "pointer_type"),
    "triton's runtime": ("triton.runtime.driver.active", "triton.runtime"),
    "triton knobs": ("x = triton.knobs", "triton.knobs"),
    "triton as a value": ("x = triton", "triton"),
    "tl as a value": ("x = tl", "tl"),
    "a lambda": ("x = lambda: 1", "lambda"),
    "a comprehension with a condition": ("x = [i for i in range(3) if i]", "of more than one loop .*static_range"),
    "a comprehension of two loops": ("x = [i for i in range(3) for j in range(3)]", "comprehension of more than one"),
    "a set comprehension": ("x = {i for i in range(3)}", "comprehension other than a list"),
    "a call in a comprehension": ("x = [open(i) for i in range(3)]", "open"),
    "what a comprehension runs over": ("x = [i for i in open('x')]", "open"),
    "the interpreter's numpy, named by a comprehension": ("x = [np for np in (a,)]\n    np.load('x')", "the name 'np'"),
    "a comprehension's name in its own loop": ("x = [np for np in np.load('x')]", "the name 'np'"),
    "a comprehension inside of one": ("x = [[np for np in (i,)][0] + np.load('x') for i in (a,)]", "the name 'np'"),
    "a comprehension that binds tl": ("x = [tl for tl in (a,)]", "'tl'"),
    "a comprehension that binds builtins": ("x = [a for __builtins__ in (a,)]", "__builtins__"),
    "a comprehension that binds an attribute": ("x = [a for a.shape in (a,)]", "comprehension"),
    "a generator": ("x = sum(i for i in range(3))", "sum"),
    "an f-string": ("x = f'{a.handle}'", "an f-string; an f-string may only be the message"),
    "an f-string that is asserted": ("tl.static_assert(f'{a.handle}')", "an f-string"),
    "a walrus": ("x = (y := 1)", ":="),
    "a nested function": ("def inner(): pass", "function inside"),
    "a class": ("class A: pass", "class"),
    "global": ("global out", "global"),
    "try": ("try:\n        x = 1\n    except: pass", "try"),
    "with": ("with a: pass", "with"),
    "raise": ("raise a", "raise"),
    "a call that is asserted": ("assert open('x')", "open"),
    "a handle that is asserted": ("assert a.handle, 'no'", r"\.handle"),
    "a call that is asserted on the device": ("tl.device_assert(open('x'))", "open"),
    "a mask of an assertion": ("tl.device_assert(a, 'no', mask=open('x'))", "open"),
    "a condition of while": ("while tl.condition(open('x')):\n        pass", "open"),
    "range rebound and called": ("range = a\n    range(a)", "call of range"),
    "a kernel rebound and called": ("helper = a\n    helper(a)", "call of helper"),
    "a kernel rebound and handed over": ("helper = open\n    tl.reduce(a, 0, helper)", "open"),
    "a kernel starred": ("helper(*helper)", "kernel helper as a value"),
    "an argument called like a function": ("a(a)", "call of a"),
    "a constant that is a call": ("x: tl.constexpr = open('x')", "open"),
    "the value of a tensor": ("x = a.value", r"\.value"),
    "another module through math": ("math.__loader__", "math.__loader__"),
    "factorials": ("x = math.factorial(10 ** 9)", "math.factorial"),
    "a number called": ("x = math.pi(a)", "math.pi as a function"),
    "math rebound": ("math = a", "'math'"),
    "numpy's loader": ("x = np.load('x')", "the name 'np'"),
    "torch's loader": ("x = torch.load('x')", "the name 'torch'"),
    "triton.language through triton": ("triton.language.core.builtins.open('x')", "tl.core"),
    "the compiler's own semantic": ("x = tl.semantic.TritonSemantic", "tl.semantic"),
    "isinstance": ("x = isinstance(a, tl.tensor)", "isinstance; decide by a tl.constexpr"),
    "a text formatted by way of a variable": ("x: tl.constexpr = '{0.handle}'\n    x.format(a)", r"\.format"),
    "a choice of texts formatted": ("x = ('a' if a else 'b').format(a)", "text"),
    "del": ("del a", "del"),
    "yield": ("yield a", "yield"),
    "await in the tree": ("x = [*a]", "starred"),
    "a dict": ("x = {}", "dict"),
    "a set": ("x = {1}", "set"),
    "break": ("for i in range(3): break", "break"),
    "else of a loop": ("for i in range(3):\n        pass\n    else: pass", "loop with else"),
    "an attribute assigned": ("a.shape = 1", "assignment to a.shape"),
    "an attribute of tl assigned": ("tl.load = tl.store", "assignment to tl.load"),
    "an element assigned": ("a[0] = 1", r"assignment to a\[0\]"),
    "augmented assignment to an attribute": ("a.shape += 1", "assignment to a.shape"),
    "a loop over an attribute": ("for a.shape in range(2): pass", "assignment to a.shape"),
    "tl rebound": ("tl = a", "'tl'"),
    "triton rebound by a loop": ("for triton in range(2): pass", "'triton'"),
    "the interpreter's own name": ("interpreter_semantic = a", "interpreter_semantic"),
    "a dunder name": ("__x = 1", "__x"),
    "a kernel as a value": ("x = helper", "kernel helper as a value"),
    "the function of a kernel": ("x = helper.fn", "kernel helper as a value"),
    "a launch from inside": ("helper[(1,)](a)", "call of"),
    "a run of a kernel": ("helper.run(a, grid=(1,), warmup=False)", "kernel helper as a value"),
    "a call of a call": ("helper(a)(a)", "call of"),
    "a call of a variable": ("x = tl.load\n    x(a)", "call of x"),
    "formatting of a text": ("x = '{0.handle}'.format(a)", "text"),
    "formatting by percent": ("x = '%s' % a", "text"),
    "a text as a value": ("x = 'a'", "a text may be compared, given to a function of tl, or named by x: tl.constexpr"),
    "bytes": ("x = b'a'", "constant"),
    "an ellipsis": ("x = ...", "constant"),
    "keywords unpacked": ("tl.load(**a)", r"\*\*"),
    "an argument of the compiler's own": ("tl.load(a, _semantic=a)", "_semantic"),
    "arguments unpacked of a call": ("tl.load(*open(a))", "open"),
    "elements unpacked": ("x = (*a, 1)", "starred"),
    "a huge integer": ("x = " + "9" * 40, "64 bits"),
    "float of a text": ("x = float('1' )", "text"),
    "a matched pattern": ("match a:\n        case 1: pass", "match"),
    "an annotation alone": ("x: tl.constexpr", "an annotation without a value; assign"),
    "the name of another function of the cell": ("launcher(a)", "launcher"),
    "a constant that is none": ("x = TABLE", "TABLE"),
    "a dtype as a function": ("x = tl.float32(a)", "tl.float32"),
}  # fmt: skip

CELL = """\
TABLE = make()


def launcher(a):
    return a


@triton.jit
def helper(a):
    return a


@triton.jit
def kernel(a, out):
    {body}
"""


@pytest.mark.parametrize("body", BODIES, ids=list(BODIES))
def test_an_escape_is_refused_by_name_and_line(body):
    text, says = BODIES[body]
    with pytest.raises(NotAdmitted, match=says) as refused:
        admit(CELL.format(body=text))
    assert refused.value.line >= CELL.split("\n").index("    {body}") + 1
    assert str(refused.value).startswith(f"line {refused.value.line}: kernel uses ")
    assert "; " in str(refused.value)


SIGNATURES = {
    "a default that is code": ("@triton.jit\ndef k(a=print(1)):\n    pass", "default"),
    "a default that is a table": ("@triton.jit\ndef k(a=[]):\n    pass", "default"),
    "a default that is a name": ("@triton.jit\ndef k(a=tl):\n    pass", "default"),
    "a default that is a module": ("@triton.jit\ndef k(a=tl.core):\n    pass", "default"),
    "a default that is a function of tl": ("@triton.jit\ndef k(a=tl.load):\n    pass", "default"),
    "a default that is an attribute": ("@triton.jit\ndef k(a=triton.knobs):\n    pass", "default"),
    "a default that is an f-string": ("@triton.jit\ndef k(a=f'{evil()}'):\n    pass", "default"),
    "a default that is a lambda": ("@triton.jit\ndef k(a=lambda: 1):\n    pass", "default"),
    "a default that assigns": ("@triton.jit\ndef k(a=(b := 1)):\n    pass", "default"),
    "a default without end": ("@triton.jit\ndef k(a=9**9**9):\n    pass", "default"),
    "a default of a tuple that holds a call": ("@triton.jit\ndef k(a=(1, evil())):\n    pass", "default"),
    "a decorator's argument that is a call": ("@triton.jit(do_not_specialize=evil())\ndef k(a):\n    pass", "literals"),
    "a decorator's list that holds a call": ("@triton.jit(noinline=[evil()])\ndef k(a):\n    pass", "literals"),
    "a decorator's arguments unpacked": ("@triton.jit(**evil())\ndef k(a):\n    pass", "literals"),
    "a decorator above jit": ("@evil\n@triton.jit()\ndef k(a):\n    pass", "decorated with evil"),
    "a decorator of another module": ("import evil\n@evil.jit\n@triton.jit\ndef k(a):\n    pass", "evil.jit"),
    "starred arguments": ("@triton.jit\ndef k(*a):\n    pass", r"\*args"),
    "keyword arguments": ("@triton.jit\ndef k(**a):\n    pass", r"\*\*kwargs"),
    "keyword-only arguments": ("@triton.jit\ndef k(*, a):\n    pass", "kwargs"),
    "an argument called tl": ("@triton.jit\ndef k(tl):\n    pass", "'tl'"),
    "a kernel called range": ("@triton.jit\ndef range(a):\n    for i in range(2):\n        pass", "range"),
    "another decorator": ("@print\n@triton.jit\ndef k(a):\n    pass", "decorated with print"),
    "jit of jit": ("@triton.jit\n@triton.jit\ndef k(a):\n    pass", "twice"),
    "a kernel with two definitions": (
        "@triton.jit\ndef k(a):\n    pass\n@triton.jit\ndef k(a):\n    return",
        r"2 times \(lines 2, 5\)",
    ),
    "a kernel bound anew": ("@triton.jit\ndef k(a):\n    pass\nif True:\n    k = print", "2 times"),
    "a kernel imported over": ("@triton.jit\ndef k(a):\n    pass\nfrom m import k", "2 times"),
    "a constant bound twice": ("B = 1\n@triton.jit\ndef k(a):\n    x = a + B\nB = 2", "2 times"),
    "a kernel that calls itself": ("@triton.jit\ndef k(a):\n    k(a)", "line 2: k calls itself"),
    "two kernels that call each other": (
        "@triton.jit\ndef k(a):\n    l(a)\n@triton.jit\ndef l(a):\n    if a > 0:\n        k(a)",
        "line 2: k calls itself",
    ),
    "no Python": ("@triton.jit\ndef k(a):\n    (", "not Python"),
    "a null character": ("@triton.jit\ndef k(a):\n    a\0", "not Python"),
    "too deep": ("@triton.jit\ndef k(a):\n    x = " + "-" * 90_000 + "a", "deeply"),
    "too long": ("#" * 300_000, "at most"),
}


@pytest.mark.parametrize("case", SIGNATURES, ids=list(SIGNATURES))
def test_signatures_decorators_and_cells_are_refused_too(case):
    text, says = SIGNATURES[case]
    with pytest.raises(NotAdmitted, match=says):
        admit(text)


HIDDEN_DEF = '''\
@triton.jit
def kernel(a):
    """
def kernel(a):
    evil()
    #"""
    tl.store(a, 1)
'''


def test_a_second_definition_inside_a_docstring_does_not_reach_the_interpreter():
    """Triton's interpreter takes a kernel's source from the last line that begins with "def"."""
    text = admit(HIDDEN_DEF).text
    assert "evil" not in text
    assert "tl.store(a, 1)" in text


@pytest.mark.parametrize("separator", ["\x0c", "\x0b", "\x1c", "\x85", "\u2028", "\r"])
def test_other_line_ends_do_not_hide_a_line(separator):
    """Python ends lines at three characters, `str.splitlines` at eleven."""
    cell = f"@triton.jit\ndef kernel(a):\n    tl.store(a, 1)  #{separator}    evil()\n    tl.store(a, 2)\n"
    try:
        text = admit(cell).text
    except NotAdmitted:
        return
    assert "evil" not in text and text.count("tl.store") == 2
    assert text.splitlines() == text.split("\n")[:-1]


def test_text_arguments_stay_on_their_line():
    cell = '@triton.jit\ndef kernel(a):\n    tl.static_assert(True, """\ndef kernel(a):\n    evil()\n""")\n    return\n'
    lines = admit(cell).text.split("\n")
    assert not any(line.startswith("def kernel(a):") and number != 1 for number, line in enumerate(lines))
    assert lines[6].strip() == "return"


def test_whitelisted_names_are_functions_and_dtypes_of_the_installed_triton():
    """No module, no class that builds a tensor from a handle, nothing that prints."""
    present = {name: getattr(tl, name) for name in admission_names.TL if hasattr(tl, name)}
    assert len(present) > 100
    for name, found in present.items():
        is_dtype = isinstance(found, tl.dtype)
        is_function = tl.core.is_builtin(found) or type(found).__name__ in ("JITFunction", "InterpretedFunction")
        compile_time = name in ("constexpr", "range", "static_range", "cdiv", "PropagateNan", "static_assert")
        compile_time = compile_time or isinstance(found, int)
        assert is_dtype or is_function or compile_time, name
    for name in admission_names.TL_MATH:
        assert tl.core.is_builtin(getattr(tl.math, name)), name
    hidden = {"core", "math", "extra", "tensor", "dtype", "pointer_type", "block_type", "device_print", "static_print"}
    assert not hidden & admission_names.TL
    assert not {"handle", "fn", "run", "data", "format", "value"} & admission_names.MEMBERS
    assert not any(name.startswith("_") for name in admission_names.MEMBERS | admission_names.TL)


KERNELS = Path(threeloops.inner.kernels.__file__).parent
FILES = sorted(path for path in KERNELS.rglob("*.py") if "@triton.jit" in path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(KERNELS).as_posix())
def test_the_kernels_of_the_library_are_admitted(path):
    """With the kernels that a file imports from its neighbours, as a student would write them into the cell."""
    admitted = admit(with_neighbours(path, set()))
    assert admitted.kernels.keys() >= {node.name for node in kernels(path)}
    assert admitted.load()


def kernels(path):
    tree = ast.parse(path.read_text())
    return [
        n
        for n in tree.body
        if isinstance(n, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in n.decorator_list)
    ]


def needed(path) -> set[str]:
    """Kernels and constants of a file."""
    assigned = {
        ast.unparse(t) for n in ast.parse(path.read_text()).body if isinstance(n, ast.Assign) for t in n.targets
    }
    return {kernel.name for kernel in kernels(path)} | {name for name in assigned if name.isupper()}


def with_neighbours(path, seen) -> str:
    """The file's text behind those of the files whose kernels it imports, each once."""
    seen.add(path)
    text = path.read_text()
    module = importlib.import_module(
        ".".join(["threeloops.inner.kernels", *path.relative_to(KERNELS).with_suffix("").parts])
    )
    for name, constant in vars(module).items():
        if isinstance(constant, tl.constexpr):  # a student writes the number that a module may import
            text = re.sub(rf"^{name} = .*$", f"{name} = tl.constexpr({constant.value!r})", text, flags=re.MULTILINE)
    lines = text.split("\n")
    before = ""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("threeloops.inner.kernels."):
            neighbour = KERNELS.joinpath(*node.module.split(".")[3:]).with_suffix(".py")
            names = {alias.name for alias in node.names}
            if neighbour.is_file() and names & needed(neighbour):
                lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
                before += with_neighbours(neighbour, seen) if neighbour not in seen else ""
    return before + "\n" + "\n".join(lines)


@given(st.text(alphabet="abtl.()[]=:\n \"'\\#xdef@triton.jit;,", max_size=200))
def test_whatever_the_text_admission_admits_or_refuses(body):
    cell = f"@triton.jit\ndef kernel(a):\n    {body}\n    return\n"
    try:
        text = admit(cell).text
    except NotAdmitted:
        return
    assert text.startswith(PRELUDE)
