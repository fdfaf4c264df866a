"""Copies of answers, disguised as students disguise them.

>>> disguised("def f(a):\\n    return a + 1", ["renamed"], keep={"f"}, seed=0)
'def f(my_0):\\n    return my_0 + 1'
"""

import ast
import random
from collections.abc import Iterable

__all__ = ["DISGUISES", "disguised"]

_PADDING = [
    "unused_total = 1 + 2",
    "if False:\n    print('never')",
    "'a note'",
    "for _ in range(0):\n    pass",
    "debug = {'a': 1}",
    "def helper_unused(x):\n    return x * 2",
    "_ = len(str(0))",
    "for unused in range(3):\n    other = unused + 1",
    "total_seen = sum([0, 0])\nif total_seen > 10:\n    raise RuntimeError('cannot happen')",
    "assert True",
    "try:\n    spare = int('7')\nexcept ValueError:\n    spare = 0",
    "log = []\nlog.append(len(log))",
]


def disguised(source: str, disguises: Iterable[str], keep: set[str], seed: int) -> str:
    """Return a program that does the same, in another format. Names in `keep` stay."""
    chance, tree = random.Random(seed), ast.parse(source)
    for disguise in disguises:
        tree = DISGUISES[disguise](tree, keep, chance)
    return ast.unparse(ast.fix_missing_locations(tree))


def _renamed(tree, keep, chance):
    """New names for parameters and variables of functions, except those that are also passed by keyword."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    bound = {each.arg for function in functions for each in ast.walk(function) if isinstance(each, ast.arg)}
    bound |= {name for function in functions for name in _stored(function)}
    bound -= keep | {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    prefix = chance.choice(["my", "the", "tmp", "cur"])
    new = {name: f"{prefix}_{number}" for number, name in enumerate(sorted(bound))}
    for node in ast.walk(tree):
        for field in ("id", "arg", "name"):
            if isinstance(name := getattr(node, field, None), str) and not isinstance(node, ast.keyword):
                setattr(node, field, new.get(name, name))
        if isinstance(node, ast.Nonlocal | ast.Global):
            node.names = [new.get(name, name) for name in node.names]
    return tree


def _reordered(tree, keep, chance):
    """Independent neighbours, operands, comparisons and keyword arguments in another order."""
    for node in ast.walk(tree):
        statements = getattr(node, "body", None)
        at = 0
        while isinstance(statements, list) and at < len(statements) - 1:
            first, second = statements[at : at + 2]
            if _independent(first, second):
                statements[at : at + 2] = second, first
            at += 2 if _independent(first, second) else 1
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and chance.random() < 0.5:
            node.left, node.right = node.right, node.left
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.Gt) and len(node.ops) == 1:
            node.left, node.comparators = node.comparators[0], [node.left]
            node.ops = [ast.Gt() if isinstance(node.ops[0], ast.Lt) else ast.Lt()]
        if isinstance(node, ast.Call):
            chance.shuffle(node.keywords)
    return tree


def _padded(tree, keep, chance):
    """Statements without an effect in every function."""
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.FunctionDef):
            for statement in ast.parse("\n".join(chance.sample(_PADDING, 2))).body:
                node.body.insert(chance.randrange(len(node.body)), statement)
    return tree


DISGUISES = {"renamed": _renamed, "reordered": _reordered, "reformatted": lambda tree, *_: tree, "padded": _padded}


def _stored(node):
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _names(node):
    attributes = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return attributes | {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _independent(first, second):
    if isinstance(first, ast.FunctionDef) and isinstance(second, ast.FunctionDef):
        return True
    if not all(isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) for each in (first, second)):
        return False
    return not (_stored(first) & _names(second) or _stored(second) & _names(first))
