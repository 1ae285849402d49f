"""Conditions as a small language: `batch_size * gpus <= 8192 and precision in ['fp16', 'bf16']`. Pure.

Names, numbers, texts in quotes, true and false (on and off); + - * / // % **; comparisons, chained ones too, and `in` a
list; and, or, not; min, max, abs, log2, ceil, floor. Python's parser reads the text; none of it is ever run as Python.

What is missing is unknown: so is all that is computed from it, and what is unknown does not hold. A text that reads
as a number is that number beside one: a variable of the environment is text.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import operator
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from workers.contract.rule import RuleError
from workers.contract.spelling import did_you_mean

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 1000
DEEPEST = 40
LARGEST = 1 << 64  # of a number, so that no power takes for ever
WORDS = {"true": True, "on": True, "false": False, "off": False}
EXAMPLE = "batch_size * gpus <= 8192"
INSTEAD = {  # of what other languages write
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "**",
    ast.Is: "==",
    ast.IsNot: "!=",
    ast.Invert: "not",
}
WRONG_SIGNS = {"&&": "and", "||": "or", "<>": "!=", "=": "==", "!": "not"}
SIGNS = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", operator.pow),
}
ORDERS = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}
FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {  # the fewest and the most arguments
    "min": (min, 2, 10),
    "max": (max, 2, 10),
    "abs": (abs, 1, 1),
    "log2": (math.log2, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "floor": (math.floor, 1, 1),
}

Step = Callable[[Mapping[str, Any]], Any]


class ExpressionError(RuleError):
    """A condition that can't be, or that can't be told for some values: the rule, what stands there, and where."""

    def __init__(self, rule: str, got: object, text: str, column: int) -> None:
        super().__init__(rule, got)
        self.text, self.column = text, column

    @property
    def pointer(self) -> str:
        """The text with a caret under the place; of a long one, what stands around it."""
        start = max(0, self.column - 60)
        before, after = "…" * (start > 0), "…" * (len(self.text) > start + 100)
        line = f"{before}{self.text[start : start + 100]}{after}"
        return f"  {line}\n  {' ' * (len(before) + self.column - start)}^"


@dataclasses.dataclass(frozen=True)
class Expression:
    text: str
    names: frozenset[str]  # that it refers to
    _step: Step = dataclasses.field(repr=False, compare=False)

    def value(self, values: Mapping[str, Any]) -> Any:
        """Return what it comes to; None where that is unknown."""
        return self._step(values)

    def truth(self, values: Mapping[str, Any]) -> bool | None:
        """Say whether it holds; None where that is unknown."""
        found = self._step(values)
        if found is None or isinstance(found, bool):
            return found
        raise ExpressionError(f"must be a condition such as {EXAMPLE}", found, self.text, 0)

    def holds(self, values: Mapping[str, Any]) -> bool:
        return bool(self.truth(values))

    def rows(self, frame: pd.DataFrame) -> pd.Series:
        """Say for each row of a table whose columns are the names whether it holds. Raises where it makes sense for
        none."""
        import pandas as pd

        columns = {name: frame[name].astype(object).where(frame[name].notna(), None) for name in sorted(self.names)}
        truths: list[bool | None] = []
        errors: list[ExpressionError] = []
        for n in range(len(frame)):
            try:
                truths.append(self.truth({name: column.iat[n] for name, column in columns.items()}))
            except ExpressionError as error:
                truths.append(None)
                errors.append(error)
        if errors and not any(one is not None for one in truths):
            raise errors[0]
        return pd.Series([bool(one) for one in truths], index=frame.index, dtype=bool)

    def __reduce__(self) -> Any:
        return parse, (self.text, self.names)

    def __str__(self) -> str:
        return self.text


def parse(text: str, names: Collection[str]) -> Expression:
    """Return the expression in a text; raises `ExpressionError`. `names` are those that it may refer to."""
    text = re.sub(r"\s*[\r\n]\s*", " ", text.strip())
    if len(text) > LONGEST:
        raise ExpressionError(f"must be at most {LONGEST} characters", len(text), text, LONGEST)
    reader = _Reader(text, names)
    step = reader.step(reader.tree(), 0)
    return Expression(text, frozenset(reader.used), step)


def condition(text: str, names: Collection[str]) -> Expression:
    """Return the expression, as `parse` does, of a text that must be true or false rather than a number."""
    made = parse(text, names)
    reader = _Reader(made.text, names)
    reader.require_condition(reader.tree(), "", 0)
    return made


class _Reader:
    """A reader from a text to the function that computes it."""

    def __init__(self, text: str, names: Collection[str]) -> None:
        self._text = text
        self._names = names
        self.used: set[str] = set()

    def tree(self) -> ast.expr:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes that Python does not know
                return ast.parse(self._text, mode="eval").body
        except SyntaxError as error:
            raise self._unreadable(error) from None
        except (ValueError, RecursionError, MemoryError):
            raise ExpressionError(f"must be a condition such as {EXAMPLE}", self._text, self._text, 0) from None

    def _unreadable(self, error: SyntaxError) -> ExpressionError:
        column = min(max((error.offset or 1) - 1, 0), len(self._text))
        for sign, right in WRONG_SIGNS.items():
            at = self._text.find(sign, max(0, column - 1), column + 2)
            if at >= 0:
                return ExpressionError(f"must be written {right}", sign, self._text, at)
        if self._text[column:].startswith(("'", '"')) and error.msg.startswith("unterminated"):
            rule = "must end with the quote that it begins with"
            return ExpressionError(rule, self._text[column:], self._text, column)
        got = self._text[column : column + 20] or "the end"
        return ExpressionError(f"must be a condition such as {EXAMPLE}", got, self._text, column)

    def _error(self, node: ast.AST, rule: str, got: object = None) -> ExpressionError:
        shown = ast.get_source_segment(self._text, node) if got is None else got
        begin: int = getattr(node, "col_offset", 0)
        column = len(self._text.encode()[:begin].decode(errors="ignore"))  # the parser counts bytes
        return ExpressionError(rule, _written(shown) if got is not None else shown, self._text, column)

    def step(self, node: ast.expr, depth: int) -> Step:
        if depth > DEEPEST:
            raise ExpressionError("must be nested less deeply", f"more than {DEEPEST} levels", self._text, 0)
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as constant):
                if not isinstance(constant, str) and not abs(constant) <= LARGEST:
                    raise self._error(node, f"must be a number of at most {LARGEST:.0e}")
                return lambda values: constant
            case ast.Name() | ast.Attribute():
                return self._name(node)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.require_condition(operand, "not", depth)
                return self._not(operand, depth)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self._number(operand, depth)
                return lambda values: None if (at := inner(values)) is None else -at
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._number(operand, depth)
            case ast.BinOp(op=op) if type(op) in SIGNS:
                return self._arithmetic(node, depth)
            case ast.BoolOp():
                return self._joined(node, depth)
            case ast.Compare():
                return self._compared(node, depth)
            case ast.Call():
                return self._called(node, depth)
            case ast.List() | ast.Tuple() | ast.Set():
                raise self._error(node, "a list must follow `in`")
            case ast.BinOp(op=op) | ast.UnaryOp(op=op) if type(op) in INSTEAD:
                raise self._error(node, f"must be written with {INSTEAD[type(op)]}")
        known = "names, numbers, texts, arithmetic, comparisons, and, or, not, " + ", ".join(FUNCTIONS)
        raise self._error(node, f"must be made of {known}")

    def _name(self, node: ast.expr) -> Step:
        name = ast.unparse(node)
        if name in self._names:
            self.used.add(name)
            return lambda values: _plain(values.get(name))
        if name in WORDS:
            return lambda values: WORDS[name]
        hint = did_you_mean(name, [*self._names, *WORDS], "a text stands in quotes")
        raise self._error(node, f"must be a known name{hint}")

    def _number(self, node: ast.expr, depth: int) -> Step:
        """Return a step whose value is a number, or unknown."""
        inner = self.step(node, depth + 1)

        def number(values: Mapping[str, Any]) -> Any:
            found = inner(values)
            if found is None or _as_number(found) is not None:
                return None if found is None else _as_number(found)
            raise self._error(node, "must be a number", found)

        return number

    def _condition(self, node: ast.expr, depth: int) -> Callable[[Mapping[str, Any]], bool | None]:
        """Return a step whose value is true or false, or unknown."""
        inner = self.step(node, depth + 1)

        def holds(values: Mapping[str, Any]) -> bool | None:
            found = inner(values)
            if found is None or isinstance(found, bool):
                return found
            raise self._error(node, "must be on or off, or a comparison", found)

        return holds

    def require_condition(self, node: ast.expr, sign: str, depth: int) -> None:
        match node:
            case ast.Compare() | ast.BoolOp() | ast.Name() | ast.Attribute() | ast.UnaryOp(op=ast.Not()):
                return
            case ast.Constant(value=bool()):
                return
        if not sign:
            raise self._error(node, f"must be a condition such as {EXAMPLE}")
        hint = "; several values follow `in`: precision in ['fp16', 'bf16']" if sign == "or" else ""
        raise self._error(node, f"`{sign}` must join conditions{hint}")

    def _not(self, operand: ast.expr, depth: int) -> Step:
        inner = self._condition(operand, depth)
        return lambda values: None if (found := inner(values)) is None else not found

    def _joined(self, node: ast.BoolOp, depth: int) -> Step:
        sign = "and" if isinstance(node.op, ast.And) else "or"
        for part in node.values:
            self.require_condition(part, sign, depth)
        parts = [self._condition(part, depth) for part in node.values]
        decides = sign == "or"  # the value that needs no look at the rest

        def joined(values: Mapping[str, Any]) -> bool | None:
            is_unknown = False
            for part in parts:
                found = part(values)
                if found is decides:
                    return decides
                is_unknown = is_unknown or found is None
            return None if is_unknown else not decides

        return joined

    def _arithmetic(self, node: ast.BinOp, depth: int) -> Step:
        left, right = self._number(node.left, depth), self._number(node.right, depth)
        sign, compute = SIGNS[type(node.op)]

        def computed(values: Mapping[str, Any]) -> Any:
            a, b = left(values), right(values)
            if a is None or b is None:
                return None
            if sign == "**" and abs(a) > 1 and b * math.log2(abs(a)) > math.log2(LARGEST):
                raise self._error(node, f"must be a number of at most {LARGEST:.0e}", f"{_written(a)} ** {_written(b)}")
            return self._checked(node, lambda: compute(a, b), f"{_written(a)} {sign} {_written(b)}")

        return computed

    def _called(self, node: ast.Call, depth: int) -> Step:
        name = ast.unparse(node.func)
        if name not in FUNCTIONS:
            raise self._error(node.func, f"must be one of the functions {', '.join(FUNCTIONS)}")
        function, fewest, most = FUNCTIONS[name]
        if node.keywords or not fewest <= len(node.args) <= most:
            count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            raise self._error(node, f"{name} must have {count} arguments")
        arguments = [self._number(argument, depth) for argument in node.args]

        def called(values: Mapping[str, Any]) -> Any:
            at = [argument(values) for argument in arguments]
            if None in at:
                return None
            return self._checked(node, lambda: function(*at), f"{name}({', '.join(map(_written, at))})")

        return called

    def _checked(self, node: ast.expr, compute: Callable[[], Any], shown: str) -> Any:
        try:
            found = compute()
        except ZeroDivisionError:
            raise self._error(node, "must not divide by zero", shown) from None
        except (ValueError, OverflowError):
            raise self._error(node, "must have a value", shown) from None
        if isinstance(found, complex):
            raise self._error(node, "must have a value", shown)
        if abs(found) > LARGEST:
            raise self._error(node, f"must be a number of at most {LARGEST:.0e}", shown)
        return found

    def _compared(self, node: ast.Compare, depth: int) -> Step:
        sides = [node.left, *node.comparators]
        pairs = [self._pair(op, a, b, depth) for op, a, b in zip(node.ops, sides, sides[1:], strict=False)]

        def compared(values: Mapping[str, Any]) -> bool | None:
            is_unknown = False
            for pair in pairs:
                found = pair(values)
                if found is False:
                    return False
                is_unknown = is_unknown or found is None
            return None if is_unknown else True

        return compared

    def _pair(self, op: ast.cmpop, left: ast.expr, right: ast.expr, depth: int) -> Step:
        if isinstance(op, (ast.In, ast.NotIn)):
            return self._within(isinstance(op, ast.In), left, right, depth)
        if type(op) in INSTEAD:
            raise self._error(left, f"must be compared with {INSTEAD[type(op)]}")
        if isinstance(right, (ast.List, ast.Tuple, ast.Set)):
            raise self._error(right, "a list must follow `in`")
        if isinstance(op, (ast.Eq, ast.NotEq)):
            a, b = self.step(left, depth + 1), self.step(right, depth + 1)
            is_equal = isinstance(op, ast.Eq)
            return lambda values: _as_asked(self._equal(right, a(values), b(values)), is_equal)
        x, y = self._number(left, depth), self._number(right, depth)
        _, order = ORDERS[type(op)]
        return lambda values: None if (p := x(values)) is None or (q := y(values)) is None else bool(order(p, q))

    def _within(self, is_in: bool, left: ast.expr, right: ast.expr, depth: int) -> Step:
        if not isinstance(right, (ast.List, ast.Tuple, ast.Set)):
            raise self._error(right, "`in` must be followed by a list such as [1, 2]")
        item = self.step(left, depth + 1)
        listed = [(node, self.step(node, depth + 1)) for node in right.elts]

        def within(values: Mapping[str, Any]) -> bool | None:
            one = item(values)
            found = [self._equal(node, one, other(values)) for node, other in listed]
            return _as_asked(True if True in found else None if None in found else False, is_in)

        return within

    def _equal(self, node: ast.expr, a: Any, b: Any) -> bool | None:
        if a is None or b is None:
            return None
        if isinstance(a, bool) != isinstance(b, bool) and isinstance(a, str) != isinstance(b, str):
            raise self._error(node, "on and off must be compared with on or off, without quotes")
        if isinstance(a, str) and isinstance(b, str):
            return a == b
        p, q = _as_number(a), _as_number(b)
        return bool(a == b) if p is None or q is None else p == q


def _as_asked(found: bool | None, is_asked: bool) -> bool | None:
    return found if found is None else found is is_asked


def _as_number(value: Any) -> Any:
    """Return a value as a number; None where it is none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return None
    return number if abs(number) <= LARGEST else None


def _plain(value: Any) -> Any:
    """Return a value of a table as Python's own; what is missing as None."""
    own = value.item() if hasattr(value, "item") else value
    return None if isinstance(own, float) and math.isnan(own) else own


def _written(value: Any) -> str:
    """Return a value as a condition would write it."""
    return ("off", "on")[value] if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
