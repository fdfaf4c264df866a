"""Numbers that follow from each other: each quantity is named once, with its origin, and formulas refer to names.

The same formulas become cells of a spreadsheet, so they are written as text, in the arithmetic that Python and
spreadsheets share: numbers, names, + − * / and parentheses.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping

from threeloops.capstone.plan import Evidence, Quantity, Topic

__all__ = ["Sheet", "evaluate"]

_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """The value of a formula. Raises ValueError for anything that a spreadsheet would not understand, or a name that
    has no value."""

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return number
            case ast.Name(id=name) if name in values:
                return values[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
        raise ValueError(
            f"{formula!r}: {ast.unparse(node)!r} is not a number, a quantity that is there, or a sum, difference, "
            "product or quotient of them"
        )

    try:
        return value(ast.parse(formula, mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"{formula!r}: {error.msg}; expected arithmetic over names") from None


class Sheet:
    """Quantities in the order in which they were written. A formula may refer to those before it."""

    def __init__(self) -> None:
        self.rows: dict[str, Quantity] = {}

    def __getitem__(self, name: str) -> float:
        return self.rows[name].value

    def put(self, topic: Topic, *rows: tuple[str, str, float, str, Evidence, str]) -> None:
        """Add quantities that are given, published, estimated, or computed by a model of the library: a row for each,
        with its name, label, value, unit, level of evidence and source."""
        for name, label, value, unit, evidence, source in rows:
            self._add(Quantity(name, label, float(value), unit, evidence, source, "", topic))

    def derive(self, topic: Topic, *rows: tuple[str, str, str, str]) -> None:
        """Add quantities that follow from earlier ones: a row for each, with its name, label, unit and formula."""
        for name, label, unit, formula in rows:
            value = evaluate(formula, {quantity.name: quantity.value for quantity in self.rows.values()})
            self._add(Quantity(name, label, value, unit, "model", "arithmetic", formula, topic))

    def _add(self, quantity: Quantity) -> None:
        if quantity.name in self.rows or not quantity.name.isidentifier():
            raise ValueError(f"{quantity.name!r}: expected a name that is not taken, of letters and digits")
        if not math.isfinite(quantity.value):
            raise ValueError(f"{quantity.name} = {quantity.value}: expected a finite number")
        self.rows[quantity.name] = quantity
