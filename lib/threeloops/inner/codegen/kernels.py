"""Kernels in the worker process: rebuilt from the texts that `kernel_source` made, or found by name."""

import ast
import builtins
import contextlib
import importlib
import importlib.util
import linecache
from typing import Any

__all__ = ["decorated", "locate", "rebuild", "value"]


def value(plain: Any, functions: dict[int, Any]) -> Any:
    """Return the inverse of `reference` in `kernel_source`."""
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind == "function":
        return functions[content]
    if kind == "module":
        return importlib.import_module(content)
    if kind == "tuple":
        return tuple(value(member, functions) for member in content)
    if kind == "import":
        imported = importlib.import_module(content[0])
        for part in content[1].split("."):
            imported = getattr(imported, part)
        return imported
    import triton.language as tl

    return tl.dtype(content) if kind == "dtype" else tl.constexpr(value(content, functions))


def _lines_of(file: str, line: int, text: str) -> None:
    """Let `inspect.getsource` find `text` at `line` of `file`, which need not exist."""
    entry = linecache.cache.get(file, (0, 0.0))
    cached = entry[2] if len(entry) > 2 and entry[1] is None else []
    new = text.splitlines(keepends=True)
    lines = [*cached, *["\n"] * (line - 1 + len(new) - len(cached))]
    lines[line - 1 : line - 1 + len(new)] = new
    linecache.cache[file] = (sum(map(len, lines)), None, lines, file)  # None: never checked against the disk


def rebuild(functions: list[dict[str, Any]]) -> dict[int, Any]:
    """Rebuild the decorated functions by number, each in a namespace of its own."""
    built: dict[int, Any] = {}
    for number in range(len(functions)):
        decorated(number, functions, built)
    for number, spec in enumerate(functions):
        namespace = built[number].fn.__globals__
        namespace[spec["name"]] = built[number]
        for name, plain in spec["names"].items():
            with contextlib.suppress(Exception):  # an absent module: if it is used, the compiler says so
                namespace[name] = value(plain, built)
    return built


def decorated(number: int, functions: list[dict[str, Any]], built: dict[int, Any]) -> Any:
    """Rebuild one function. Its defaults may be functions, which are built first; the functions that its body calls are
    bound later."""
    if number in built:
        return built[number]
    spec = functions[number]
    for plain in (*spec["defaults"], *spec["keyword_defaults"].values()):
        if isinstance(plain, dict) and "function" in plain:
            decorated(plain["function"], functions, built)
    _lines_of(spec["file"], spec["line"], spec["source"])
    tree = ast.increment_lineno(ast.parse(spec["source"]), spec["line"] - 1)
    (definition,) = tree.body
    signature = definition.args
    signature.defaults, signature.kw_defaults = [], [None] * len(signature.kwonlyargs)
    for parameter in (*signature.posonlyargs, *signature.args, *signature.kwonlyargs):
        parameter.annotation = None
    definition.returns = None
    definition.decorator_list = []
    namespace: dict[str, Any] = {"__name__": spec["module"], "__builtins__": builtins}
    exec(compile(tree, spec["file"], "exec", dont_inherit=True), namespace)
    function = namespace[spec["name"]]
    function.__defaults__ = tuple(value(plain, built) for plain in spec["defaults"]) or None
    function.__kwdefaults__ = {name: value(plain, built) for name, plain in spec["keyword_defaults"].items()} or None
    function.__annotations__ = {name: value(plain, built) for name, plain in spec["annotations"].items()}
    function.__qualname__ = spec["qualname"]
    built[number] = _decorator(spec["kind"])(function, **spec["options"])
    return built[number]


def _decorator(kind: str) -> Any:
    import triton

    if kind == "gluon":
        from triton.experimental import gluon

        return gluon.jit
    return triton.jit if kind == "jit" else triton.constexpr_function


def locate(source: dict[str, Any]) -> Any:
    """Find a kernel by name, in a text, in an importable module or in a file."""
    if "text" in source:
        _lines_of(source["file"], 1, source["text"])
        namespace: dict[str, Any] = {"__name__": "kernel_source", "__builtins__": builtins}
        exec(compile(source["text"], source["file"], "exec", dont_inherit=True), namespace)
        kernel = namespace.get(source["name"])
    else:
        kernel = importlib.import_module(source["module"]) if _importable(source) else _from_file(source["file"])
        for part in source["name"].split("."):
            kernel = getattr(kernel, part, None)
    if kernel is None:
        raise LookupError(f"{source['file']} defines no kernel called {source['name']!r}")
    return kernel


def _importable(source: dict[str, Any]) -> bool:
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(source["module"])
        return spec is not None and spec.origin == source["file"]
    return False


def _from_file(file: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"kernel_file_{abs(hash(file))}", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
