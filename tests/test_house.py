"""The layout of `lib` and `grader`: who may import whom, how large a room may grow, and what is public. Also how names,
lines and docstrings are written.

A room is a package, and its face is `__init__.py`. Imports count wherever they stand: at the top, in a function, or
under TYPE_CHECKING.
"""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES_PER_ROOM, ROOMS_OF_INNER = 8, 14
STATEMENTS_PER_FILE, STATEMENTS_PER_FUNCTION = 280, 60
CLASSES_OF_A_NAME = 3

VAGUE = frozenset("each found kept known said".split())
"""Names that say what happened to a value, and not what it is."""

LIBRARY = "hardware simulation inner data models training product capstone lab commands".split()
"""A package imports only those before it, and the modules beside them (units, files, palette, module_process)."""

INNER = (
    "costs roofline launches precision interpreter kernels machine_models memory profiling meter codegen predict replay"
).split()
"""The same within `inner`, where timing is beside them, and roofline is a module."""

GRADER = (
    "transport authoring machine pages release submissions sandbox witness wall processes grading worklist learner "
    "proposals author mutation classroom course site doctor evidence cli"
).split()

CLOSURES = {"rows.rmsnorm": 3, "attention.flash_attention": 5}
"""Kernels, and how many files of `inner.kernels` a reader opens to read one from end to end."""

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def modules() -> dict[str, Path]:
    """Every module of the library and the harness by its dotted name."""
    found = {}
    for base, top in ((ROOT / "lib", "threeloops"), (ROOT / "grader", "threeloops_grader")):
        for path in sorted((base / top).rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache  # every worker of pytest-xdist imports this file, and one of them runs its tests
def parsed(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@cache
def imports(module: str) -> set[str]:
    """Modules of the project that this one imports anywhere in its text."""
    found = set()
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {full if full in MODULES else node.module for full in inner.values()}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & MODULES.keys() - {module}


def is_room(module: str) -> bool:
    return MODULES[module].name == "__init__.py"


def room(module: str) -> str:
    return module if is_room(module) else module.rpartition(".")[0]


def test_nothing_imports_in_a_circle():
    files = {module: imports(module) for module in MODULES}
    rooms: dict[str, set[str]] = {}
    for module, others in files.items():
        rooms.setdefault(room(module), set()).update({room(other) for other in others} - {room(module)})
    for graph in (files, rooms):
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as circle:
            pytest.fail(" is imported by ".join(circle.args[1]))


@pytest.mark.parametrize(
    ("top", "order"), [("threeloops.", LIBRARY), ("threeloops.inner.", INNER), ("threeloops_grader.", GRADER)], ids=str
)
def test_a_package_imports_only_those_below_it(top, order):
    def rank(module: str) -> int:
        head = module.removeprefix(top).partition(".")[0]
        return order.index(head) if head in order else -1

    rooms = [module for module in MODULES if module.startswith(top) and is_room(module)]
    packages = {module.removeprefix(top).partition(".")[0] for module in rooms}
    assert packages <= set(order), "a package without a place in the order"
    assert not [
        f"{module} imports {other}"
        for module in MODULES
        for other in imports(module)
        if module.startswith(top) and other.startswith(top) and rank(other) > rank(module)
    ]


def test_the_library_imports_nothing_of_the_harness():
    assert not [
        module
        for module in MODULES
        for other in imports(module)
        if module.startswith("threeloops.") and other.startswith("threeloops_grader")
    ]


def test_a_room_reads_in_one_sitting():
    files = Counter(room(module) for module in MODULES if not is_room(module))
    assert not {name: count for name, count in files.items() if count > FILES_PER_ROOM}
    inner = {module.split(".")[2] for module in MODULES if module.startswith("threeloops.inner.")}
    assert len(inner) <= ROOMS_OF_INNER


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Statements of a file or a function, docstrings left out."""
    for node in ast.walk(tree):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and node is not tree and not is_docstring:
            yield node


def own_statements(function: ast.AST) -> int:
    inner = [node for node in statements(function) if isinstance(node, FUNCTION)]
    return len(set(statements(function)) - {node for each in inner for node in statements(each)})


def test_a_file_and_a_function_have_few_statements():
    """Statements are counted, not lines, so that nobody gains by writing two of them on one line."""
    long = {
        module: count for module in MODULES if (count := len(list(statements(parsed(module))))) > STATEMENTS_PER_FILE
    }
    assert not long
    assert not {
        f"{module}:{node.lineno} {node.name}": count
        for module in MODULES
        for node in ast.walk(parsed(module))
        if isinstance(node, FUNCTION) and (count := own_statements(node)) > STATEMENTS_PER_FUNCTION
    }


def test_few_classes_share_a_name():
    classes: dict[str, list[str]] = {}
    for module in MODULES:
        for node in parsed(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in classes.items() if len(modules) > CLASSES_OF_A_NAME}


def variables(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names that are bound, with their lines: variables and parameters. A class's fields are its interface instead."""
    fields = {
        id(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if id(node) not in fields:
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name
            case ast.MatchMapping(rest=str(name)):
                yield node.lineno, name


def test_a_variable_is_named_by_what_it_holds():
    assert not [
        f"{module}:{line}: {name}" for module in MODULES for line, name in variables(parsed(module)) if name in VAGUE
    ]


DISPLAY = (ast.Tuple, ast.List, ast.Set, ast.Dict)


def test_a_line_assigns_once():
    """`a, b = 1, 2` is two assignments. A swap needs both values before it assigns, and so may a value with a call."""

    def are_two(node: ast.AST) -> bool:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                named = {ast.unparse(target) for target in targets}
                parts = [part for value in values for part in ast.walk(value)]
                return not any(isinstance(part, ast.Call | ast.Await | ast.Starred) for part in parts) and not (
                    named & {ast.unparse(part) for part in parts if isinstance(part, ast.expr)}
                )
        return False

    kernels = "threeloops.inner.kernels"  # tiles and their running values are carried together
    assert not [
        f"{module}:{node.lineno}"
        for module in MODULES
        for node in ast.walk(parsed(module))
        if not module.startswith(kernels) and are_two(node)
    ]


def test_only_tables_keep_their_own_format():
    """`fmt: skip` may stand behind a display, an alias of types, and in a kernel, whose arguments stand in groups."""
    faults = []
    for module, path in MODULES.items():
        marked = {number for number, line in enumerate(path.read_text().splitlines(), 1) if "fmt: skip" in line}
        if not marked or module.startswith("threeloops.inner.kernels"):
            continue
        for node in ast.walk(parsed(module)):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                value = node.value.args[0] if isinstance(node.value, ast.Call) and node.value.args else node.value
                if isinstance(value, (*DISPLAY, ast.Subscript)):
                    marked.discard(node.end_lineno)
        faults += [f"{module}:{number}" for number in sorted(marked)]
    assert not faults


MIDDLE_OF_A_SENTENCE = re.compile(
    r"(Of|That|In|From|For|With|As|Only|Where|To|Then|At|On|By|After|Before|Without|Until|If|When|And|Or|So|Also|None|"
    r"Nothing|What|Whoever|Whatever|Whose|Within|Between|Per|Because|Since|Such) "
)


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Strings that stand as statements: below a module, class or function, or below an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def test_no_docstring_begins_in_the_middle_of_a_sentence():
    assert not [
        f"{path}:{text.lineno}: {text.value.strip()[:60]}"
        for path in [*MODULES.values(), *(ROOT / "benchmarks").rglob("*.py")]
        for text in docstrings(ast.parse(path.read_text()))
        if MIDDLE_OF_A_SENTENCE.match(text.value.strip())
    ]


@pytest.mark.parametrize(("kernel", "most"), CLOSURES.items(), ids=CLOSURES)
def test_a_kernel_is_read_from_few_files(kernel, most):
    kernels = "threeloops.inner.kernels"
    found: set[str] = set()
    todo = {f"{kernels}.{kernel}"}
    while todo:
        found.add(module := todo.pop())
        todo |= {other for other in imports(module) if other.startswith(kernels)} - found
    assert len([module for module in found if not is_room(module)]) <= most, sorted(found)


def public(tree: ast.Module) -> set[str]:
    """Names without an underscore that the text defines at its top level."""
    found = set()
    for node in tree.body:
        if isinstance(node, (*FUNCTION, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {name for name in found if not name.startswith("_")}


def declared(tree: ast.Module) -> set[str]:
    """What the module's `__all__` lists."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def named_by_others(tree: ast.Module) -> set[str]:
    """Commands, which typer calls; `main`; kernels, which Triton's reports name; exceptions, which callers meet."""
    decorator = re.compile(r"triton\.jit|app\.\w+\(|command$")
    exception = re.compile(r"(Error|Exception|Failure|Refused|Warning)$")
    found = set()
    for node in tree.body:
        decorators = map(ast.unparse, getattr(node, "decorator_list", []))
        if isinstance(node, ast.FunctionDef) and (node.name == "main" or any(map(decorator.match, decorators))):
            found.add(node.name)
        if isinstance(node, ast.ClassDef) and any(map(exception.search, [node.name, *map(ast.unparse, node.bases)])):
            found.add(node.name)
    return found


def types_of(tree: ast.Module, names: set[str]) -> set[str]:
    """Words of the annotations of these functions, and of the fields and public methods of these classes."""
    found: set[str] = set()
    for node in tree.body:
        if getattr(node, "name", "") not in names:
            continue
        for part in node.body if isinstance(node, ast.ClassDef) else [node]:
            private = getattr(part, "name", "").startswith("_") and part.name != "__init__"
            if isinstance(part, FUNCTION) and (part is node or not private):
                arguments = [a for a in ast.walk(part.args) if isinstance(a, ast.arg)]
                annotated = [part.returns, *(argument.annotation for argument in arguments)]
            else:
                annotated = [part.annotation] if isinstance(part, ast.AnnAssign) else []
            found |= {word for each in annotated if each for word in re.findall(r"\w+", ast.unparse(each))}
    return found


@cache
def readers() -> dict[Path, tuple[set[str], set[str]]]:
    """Texts in which a name may be used (tests, generated notebooks and data are not): dotted names, and words.

    `from a.b import c` names a.b.c.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", ":!tests", ":!labs", ":!*.json"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = {}
    for path in filter(Path.is_file, (ROOT / name for name in listed.stdout.splitlines())):
        text = path.read_text(errors="replace")
        dotted = set(re.findall(r"\w+(?:\.\w+)+", text))
        for parent, names in re.findall(r"from ([\w.]+) import (\([^)]*\)|[^\n(]*)", text):
            dotted |= {f"{parent}.{name}" for name in re.findall(r"\w+", names)}
        found[path] = (dotted, set(re.findall(r"\w+", text)))
    return found


def used(module: str) -> set[str]:
    """Words of the other files that name this module, or something in it, also through a face that passes it on."""
    package, _, leaf = module.rpartition(".")
    passes_on = re.compile(rf"from {package} import .*\b{leaf}\b")
    faces = [face for face in MODULES if is_room(face) and passes_on.search(MODULES[face].read_text())]
    known_as = [module, *(f"{face}.{leaf}" for face in faces)]
    names = re.compile("|".join(rf"{re.escape(name)}(\.|$)" for name in known_as))
    others = [both for path, both in readers().items() if path != MODULES[module]]
    return set().union(*(words for dotted, words in others if any(map(names.match, dotted))))


@pytest.mark.parametrize("module", [module for module in MODULES if not is_room(module)])
def test_what_is_public_is_declared_and_used_elsewhere(module):
    """By another module, a lab, a benchmark or a document, or as the type of something that is."""
    tree = parsed(module)
    imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    passed_on = imported & declared(tree)
    assert public(tree) | passed_on == declared(tree), "__all__ lists the names without an underscore, and those only"
    known = declared(tree) & (passed_on | used(module) | named_by_others(tree))
    while more := (types_of(tree, known) & declared(tree)) - known:
        known |= more
    assert declared(tree) == known, "private by default: give these an underscore, or remove them"


def test_the_tests_mirror_the_tree():
    for base, top in (("tests/lib", "threeloops"), ("tests/grader", "threeloops_grader")):
        for path in (ROOT / base).rglob("test_*.py"):
            folder = ".".join([top, *path.parent.relative_to(ROOT / base).parts])
            assert folder in MODULES, f"{path.relative_to(ROOT)}: there is no package {folder}"
