"""A lab as a student has it: setup cells, stubs of answers, and visible tests."""

import ast
from dataclasses import dataclass
from typing import Self

from grader.authoring.labs import Lab
from grader.authoring.manifest import Kind, Manifest, manifest, split_test_id
from grader.authoring.regions import without

__all__ = ["Asked", "Function", "Released", "head", "parameters"]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parameters(function: Function) -> list[str]:
    """The names of the parameters that a call gives values to; a method's `self` is one of them."""
    given = function.args
    return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def head(function: Function) -> str:
    """The first line of a function with this signature, without its colon."""
    kind = "async def" if isinstance(function, ast.AsyncFunctionDef) else "def"
    return f"{kind} {function.name}({ast.unparse(function.args)})"


@dataclass(frozen=True)
class Asked:
    """An exercise: the stub that its solution cell holds, and the visible part of its test cells."""

    id: str
    stub: ast.Module
    tests: tuple[ast.Module, ...]

    @property
    def functions(self) -> list[Function]:
        """The functions that the exercise asks for: those whose body is still to be written."""
        return [each for each in self.stub.body if isinstance(each, Function) and _is_unwritten(each)]

    @property
    def classes(self) -> list[ast.ClassDef]:
        return [each for each in self.stub.body if isinstance(each, ast.ClassDef) and _is_unwritten(each)]

    def answer(self, name: str, text: str, before: str = "") -> str:
        """The text of the solution cell with `text` in place of the function or class `name`, after `before`."""
        parts = [text if getattr(node, "name", "") == name else ast.unparse(node) for node in self.stub.body]
        return "\n\n".join([*([before] if before else []), *parts]) + "\n"


@dataclass(frozen=True)
class Released:
    """The released notebook of a lab; `setup` is one module of all its setup cells."""

    trusted: Manifest
    setup: ast.Module
    exercises: tuple[Asked, ...]

    @classmethod
    def read(cls, lab: Lab) -> Self:
        trusted = manifest(lab)
        texts: dict[Kind, list[tuple[str, str]]] = {}
        for cell in trusted.master.cells:
            texts.setdefault(trusted.kind(cell), []).append((cell.id, cell.source))
        setup = ast.parse("\n\n".join(text for _, text in texts.get(Kind.SETUP, [])))
        tests = [(split_test_id(name)[0], without(text, "HIDDEN TESTS")) for name, text in texts[Kind.TEST]]
        return cls(
            trusted,
            setup,
            tuple(
                Asked(
                    name,
                    ast.parse(without(text, "SOLUTION")),
                    tuple(ast.parse(test) for exercise, test in tests if exercise == name),
                )
                for name, text in texts[Kind.SOLUTION]
            ),
        )


def _is_unwritten(node: ast.AST) -> bool:
    raised = [each.exc for each in ast.walk(node) if isinstance(each, ast.Raise)]
    return any("NotImplementedError" in ast.unparse(each) for each in raised if each is not None)
