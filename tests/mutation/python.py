"""Mutants of Python: comparisons, conditions, numbers, texts, results, and statements left out.

Left as they are: annotations, docstrings, decorators, imports, the texts of errors, and arguments
by which only the speed differs.
"""

import ast
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tests.mutation.mutant import Mutant

_COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.BitOr: "&",
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SPEED_ONLY = {"prepare", "strict", "binary"}


def mutants(path: str, content: bytes) -> list[Mutant]:
    """Return every mutant of a module, in the order of the file."""
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return sorted(
        set(_Mutator(path, content, starts).of(ast.parse(content))),
        key=lambda mutant: (mutant.start, mutant.end, mutant.text),
    )


class _Mutator:
    def __init__(self, path: str, content: bytes, starts: list[int]) -> None:
        self._path = path
        self._content = content
        self._starts = starts

    def of(self, node: ast.AST) -> Iterator[Mutant]:
        """Give the mutants of a node and of all that is in it."""
        if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr):
            return
        if isinstance(node, ast.Raise):
            yield self._replace(node, "pass")
            return
        if isinstance(node, ast.keyword) and node.arg in _SPEED_ONLY:
            return
        yield from self._here(node)
        for name, value in ast.iter_fields(node):
            if name in {"annotation", "returns", "decorator_list", "bases"}:
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_docstring(child):
                    yield from self.of(child)

    def _here(self, node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.Compare(left, [operator], [right]):
                for other in _COMPARISONS[type(operator)]:
                    yield self._between(left, right, node, f" {other} ")
            case ast.BoolOp(operator, values):
                other = " or " if isinstance(operator, ast.And) else " and "
                for left, right in pairwise(values):
                    yield self._between(left, right, node, other)
            case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
                yield self._between(left, right, node, f" {_OPERATORS[type(operator)]} ")
            case ast.UnaryOp(ast.Not(), operand):
                yield self._replace(node, f"({ast.unparse(operand)})")
            case ast.Constant(bool(value)):
                yield self._replace(node, str(not value))
            case ast.Constant(int(value)):
                yield self._replace(node, str(value + 1))
            case ast.Constant(str(value)):
                yield self._replace(node, repr(value + "XX"))
            case ast.If(test) | ast.IfExp(test) | ast.While(test):
                if not isinstance(node, ast.While):
                    yield self._replace(test, "True")
                yield self._replace(test, "False")
            case ast.comprehension(ifs=conditions):
                for condition in conditions:
                    yield self._replace(condition, "True")
            case ast.Return(value) if value is not None and not _is_none(value):
                yield self._replace(node, "return None")
            case ast.Expr(ast.Call()) | ast.AugAssign():
                yield self._replace(node, "pass")
            case ast.Assign([ast.Subscript() | ast.Attribute()]):
                yield self._replace(node, "pass")
            case ast.Continue():
                yield self._replace(node, "break")
            case ast.Break():
                yield self._replace(node, "continue")
            case ast.Call(ast.Name(name)) if name in _FUNCTIONS:
                yield self._replace(node.func, _FUNCTIONS[name])

    # Any: nodes of the syntax tree have what their class has.
    def _replace(self, node: Any, text: str) -> Mutant:
        return self._mutant(self._start(node), self._end(node), text, node)

    def _between(self, left: Any, right: Any, node: Any, text: str) -> Mutant:
        """Replace the text between two nodes, except for the brackets around them."""
        start, end = self._end(left), self._start(right)
        between = self._content[start:end]
        closing = ")" * between.count(b")")
        opening = "(" * between.count(b"(")
        return self._mutant(start, end, f"{closing}{text}{opening}", node)

    def _mutant(self, start: int, end: int, text: str, node: Any) -> Mutant:
        lines = range(node.lineno, node.end_lineno + 1)
        return Mutant(self._path, start, end, text.encode(), lines)

    def _start(self, node: Any) -> int:
        return self._starts[node.lineno - 1] + int(node.col_offset)

    def _end(self, node: Any) -> int:
        return self._starts[node.end_lineno - 1] + int(node.end_col_offset)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
