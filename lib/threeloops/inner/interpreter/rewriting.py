"""Rewrite the source of a kernel with calls of `statements`, so that its statements behave as in a compiled kernel."""

import ast
from collections.abc import Iterator

import triton

__all__ = ["Transformer"]

_TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])

_Sides = tuple[tuple[str, bool], ...]
"""Branches around a statement, outermost first: the name of each one's types, and whether its condition holds."""


class Transformer(ast.NodeTransformer):
    """Rewrite a kernel to behave as if compiled. Numbers become tensors if they would in a compiled kernel (if
    assigned, as the index of a loop, chosen by a tensor; up to Triton 3.6 also if returned). `and` and `or` return
    booleans. A loop, or a branch on a tensor, keeps the types of variables. After a loop, its index and the variables
    first assigned in a step have no value."""

    _loops = 0
    """How many loops surround the statement that is visited, unrolled ones left out."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self._loops = 0
        self.generic_visit(node)
        returns = list(_returns(node.body))
        for place, (statement, _) in enumerate(returns):
            if statement.value is not None and _TRITON < (3, 7):
                statement.value = _call("threeloops_assigned", statement, statement.value)
            elif statement.value is not None and len(returns) > 1:
                statement.value = _call("threeloops_returned", statement, statement.value, *_others(place, returns))
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _call("threeloops_negated", node, node.operand) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        return _call("threeloops_chosen", node, node.test, _later(node.body), _later(node.orelse))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max") and not node.keywords:
            return _call("threeloops_called", node, node.func, *node.args)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        if len(node.targets) > 1:
            raise ValueError("Multiple assignments are not supported")
        self.generic_visit(node)
        node.value = _call("threeloops_assigned", node, node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """Rewrite `x += y` as `x = x + y`, with Python numbers as well."""
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        read = ast.Name(node.target.id, ast.Load())
        value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        return ast.copy_location(ast.Assign([node.target], _call("threeloops_assigned", node, value)), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        self.generic_visit(node)
        if node.value is not None and "constexpr" not in ast.unparse(node.annotation):
            node.value = _call("threeloops_assigned", node, node.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        return _call("threeloops_logical", node, ast.Constant(isinstance(node.op, ast.And)), *map(_later, node.values))

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        """Keep types in a branch on a tensor, as in a loop. A variable that only one side adds has no value after the
        branch."""
        then = _names_assigned(node.body)
        otherwise = _names_assigned(node.orelse)
        self.generic_visit(node)
        types = f"threeloops_types_{node.lineno}_{node.col_offset}"
        for side, names, others in ((node.body, then, otherwise), (node.orelse, otherwise, then)):
            for name in names:
                keep = _KEEP_ADDED if name in others else _KEEP
                side += _statements(keep.format(name=name, types=types, place="branch"), node)
        before = _notes(sorted({*then, *otherwise}), types, node)
        opened = ast.Assign([ast.Name(types, ast.Store())], _call("threeloops_branch", node, node.test))
        node.test = ast.copy_location(ast.Attribute(ast.Name(types, ast.Load()), "taken", ast.Load()), node.test)
        return [ast.copy_location(opened, node), *before, node]

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        self.generic_visit(node)
        node.test = _call("threeloops_holds", node, node.test)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        return self._refuse(node) if self._loops else node

    def _refuse(self, node: ast.stmt | ast.expr) -> ast.AST:
        """Return a call that refuses the node when it is executed: code that a constant leaves out is not compiled."""
        what, instead = _NOT_COMPILED[type(node)]
        call = _call("threeloops_refused", node, ast.Constant(what), ast.Constant(instead))
        return ast.copy_location(ast.Expr(call), node) if isinstance(node, ast.stmt) else call

    visit_Break = visit_Continue = visit_Lambda = _refuse

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        self.generic_visit(node)
        return node if _TRITON >= (3, 8) else self._refuse(node)

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        """Refuse a comprehension of a range, because only one of a tuple compiles."""
        self.generic_visit(node)
        return self._refuse(node) if "range(" in ast.unparse(node.generators[0].iter) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        return self._refuse(node) if len(node.ops) > 1 and _TRITON < (3, 9) else node

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        called = node.iter.func if isinstance(node.iter, ast.Call) else None
        iterator = "" if called is None else ast.unparse(called).split(".")[-1]
        if isinstance(called, ast.Name) and called.id == "range":
            called.id = "threeloops_range"
        statements = self._keeping_types(node) if iterator == "range" else [self._inside(node)]
        if iterator != "static_range" and isinstance(node.target, ast.Name):
            statements += _statements(_FORGET.format(name=node.target.id), node)
        return statements

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        return self._keeping_types(node)

    def _keeping_types(self, node: ast.For | ast.While) -> list[ast.stmt]:
        """Keep the types of a loop's variables. A compiled loop carries the variables that have a value before it, and
        each keeps its type. Other variables that a step assigns have no value after the step."""
        names = _names_assigned(node.body)
        types = f"threeloops_types_{node.lineno}"
        self._loops += 1
        self._inside(node)
        self._loops -= 1
        if isinstance(node, ast.While):
            node.test = _call("threeloops_condition", node, node.test)
        for name in names:
            node.body += _statements(_KEEP.format(name=name, types=types, place="loop"), node)
        return [*_statements(f"{types} = threeloops_types()", node), *_notes(names, types, node), node]

    def _inside(self, node: ast.For | ast.While) -> ast.stmt:
        self.generic_visit(node)
        return node


_FORGET = "{name} = 0\ndel {name}"
"""Assigned first, because `del` fails if the loop made no steps."""
_NOTE = "try: {types}['{name}'] = threeloops_type_of({name})\nexcept threeloops_no_value: pass"
_KEEP_ADDED = "if '{name}' in {types}: threeloops_kept('{name}', {types}['{name}'], {name}, '{place}')"
_KEEP = _KEEP_ADDED + "\nelif {types}.forget:\n {name} = 0\n del {name}"


_NOT_COMPILED: dict[type, tuple[str, str]] = {
    ast.Break: ("break", "make it the condition of a `while` loop"),
    ast.Continue: ("continue", "put the rest of the step under an `if`"),
    ast.Return: ("a return within a loop", "let the loop end, and return after it"),
    ast.NamedExpr: ("an assignment within an expression", "assign in a statement of its own"),
    ast.Lambda: ("a lambda", "write a function with @triton.jit"),
    ast.ListComp: ("a comprehension of a range", "write a loop with tl.static_range"),
    ast.Compare: ("a chain of comparisons", "join two comparisons with `and` or &"),
}
"""Syntax that the compiler refuses: its name, and its replacement."""


def _statements(code: str, place: ast.stmt) -> list[ast.stmt]:
    statements = ast.parse(code).body
    for node in [node for statement in statements for node in ast.walk(statement)]:
        ast.copy_location(node, place)
    return statements


def _names_assigned(body: list[ast.stmt]) -> list[str]:
    """Return the variables that these statements assign, except constants and the indices of loops."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    indices = {
        target.id
        for node in nodes
        if isinstance(node, ast.For)
        for target in ast.walk(node.target)
        if isinstance(target, ast.Name)
    }
    constants = {
        ast.unparse(node.target)
        for node in nodes
        if isinstance(node, ast.AnnAssign) and "constexpr" in ast.unparse(node.annotation)
    }
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return sorted(assigned - indices - constants)


def _notes(names: list[str], types: str, place: ast.stmt) -> list[ast.stmt]:
    return [note for name in names for note in _statements(_NOTE.format(name=name, types=types), place)]


def _returns(body: list[ast.stmt], sides: _Sides = ()) -> Iterator[tuple[ast.Return, _Sides]]:
    """Yield each return among rewritten statements, and the sides of branches that it is on. A return in a loop, which
    may be compiled several times, comes twice and on no side."""
    for statement in body:
        if isinstance(statement, ast.Return):
            yield statement, sides
        elif isinstance(statement, ast.If):
            types = ast.unparse(statement.test).removesuffix(".taken")
            yield from _returns(statement.body, (*sides, (types, True)))
            yield from _returns(statement.orelse, (*sides, (types, False)))
        else:
            yield from 2 * [(inner, ()) for inner in ast.walk(statement) if isinstance(inner, ast.Return)]


def _others(place: int, returns: list[tuple[ast.Return, _Sides]]) -> list[ast.expr]:
    """Return where the other returns of a function are: each on a side of a branch that parts it from this one, or None
    if it is always compiled, or its branch comes later."""
    _, own = returns[place]
    sources = set()
    for number, (_, sides) in enumerate(returns):
        parting = next(((k, side) for k, side in enumerate(sides) if side not in own[k : k + 1]), None)
        if parting is None:
            sources |= {"None"} if number != place else set()
            continue
        depth, (types, side) = parting
        is_known = number < place or types in [branch for branch, _ in own[depth : depth + 1]]
        sources.add(f"({types}, {side})" if is_known else "None")
    return [ast.parse(source, mode="eval").body for source in sorted(sources)]


def _call(name: str, place: ast.AST, *values: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [*values], []), place)


def _later(value: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)
