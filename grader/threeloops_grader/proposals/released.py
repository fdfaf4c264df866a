"""A lab as a student has it: setup cells, stubs of answers, and visible tests."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from typing import Self

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import SETUPS, Kind, Manifest, manifest, split_test_id
from threeloops_grader.authoring.regions import without
from threeloops_grader.proposals.slicing import reads

_RUNNER = re.compile(r"threeloops\.lab\..*\bon_\w+")

__all__ = ["Asked", "Function", "Proposal", "Released", "head", "parameters"]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parameters(function: Function) -> list[str]:
    """Return the names of the parameters, including `self` of a method."""
    given = function.args
    return [parameter.arg for parameter in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def head(function: Function) -> str:
    """Return the first line of a function with this signature, without its colon."""
    kind = "async def" if isinstance(function, ast.AsyncFunctionDef) else "def"
    return f"{kind} {function.name}({ast.unparse(function.args)})"


class Proposal:
    """A solution cell to try. `variants` return other parts of the same result, and are tried if a function returns."""

    def __init__(self, text: str, *variants: str) -> None:
        self.text = text
        self.variants = variants


@dataclass(frozen=True)
class Asked:
    """An exercise: the stub that its solution cell holds, and the visible part of its test cells."""

    id: str
    stub: ast.Module
    tests: tuple[ast.Module, ...]

    @property
    def functions(self) -> list[Function]:
        """The functions that the exercise asks for: those without a body so far."""
        return [node for node in self.stub.body if isinstance(node, Function) and _is_unwritten(node)]

    @property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.stub.body if isinstance(node, ast.ClassDef) and _is_unwritten(node)]

    def answer(self, name: str, text: str, before: str = "") -> str:
        """Return the solution cell with `text` instead of the function or class `name`, and with `before` on top."""
        parts = [text if getattr(node, "name", "") == name else _text(node) for node in self.stub.body]
        return "\n\n".join([*([before] if before else []), *parts]) + "\n"


@dataclass(frozen=True)
class Released:
    """The released notebook of a lab. `setup` is a module of all its setup cells. `oracle` is the text of the setup
    cells that answers cannot call in graded runs, but may copy."""

    trusted: Manifest
    setup: ast.Module
    oracle: str
    exercises: tuple[Asked, ...]

    def reached(self, test: ast.Module) -> set[str]:
        """Return the functions and classes of setup cells that a test uses, directly or through others."""
        defined = {node.name: node for node in self.setup.body if isinstance(node, Function | ast.ClassDef)}
        names: set[str] = set()
        new = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)} & defined.keys()
        while new:
            names |= new
            new = {name for reader in new for name in reads(defined[reader]) if name in defined} - names
        return names

    def runs_elsewhere(self, test: ast.Module) -> bool:
        """Tell whether a test runs answers on ranks or on a recorded disk, with on_cluster, on_disk and the like."""
        runners = {
            alias.asname or alias.name
            for node in self.setup.body
            if isinstance(node, ast.ImportFrom) and _RUNNER.match(node.module or "")
            for alias in node.names
        }
        reached = self.reached(test)
        used = [test, *(node for node in self.setup.body if getattr(node, "name", "") in reached)]
        return any(reads(node) & runners for node in used)

    @classmethod
    def read(cls, lab: Lab) -> Self:
        trusted = manifest(lab)
        texts: dict[Kind, list[tuple[str, str]]] = {}
        for cell in trusted.master.cells:
            texts.setdefault(trusted.kind(cell), []).append((cell.id, cell.source))
        setup = ast.parse("\n\n".join(c.source for c in trusted.master.cells if trusted.kind(c) in SETUPS))
        oracle = "\n\n".join(text for _, text in texts.get(Kind.ORACLE, []))
        tests = [(split_test_id(name)[0], without(text, "HIDDEN TESTS")) for name, text in texts[Kind.TEST]]
        return cls(
            trusted,
            setup,
            oracle,
            tuple(
                Asked(
                    name,
                    ast.parse(without(text, "SOLUTION")),
                    tuple(ast.parse(test) for exercise, test in tests if exercise == name),
                )
                for name, text in texts[Kind.SOLUTION]
            ),
        )


@cache
def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _is_unwritten(node: ast.AST) -> bool:
    raised = [raising.exc for raising in ast.walk(node) if isinstance(raising, ast.Raise)]
    return any("NotImplementedError" in ast.unparse(exception) for exception in raised if exception is not None)
