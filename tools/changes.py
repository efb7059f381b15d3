"""The small faults that a mutant can have. Each changes a node of a syntax tree, or does not apply (None)."""

import ast
from collections.abc import Callable
from typing import Any

Change = Callable[[ast.AST], ast.AST | None]
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,  # codespell:ignore notin
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def comparison(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        node.ops = [COMPARISONS[type(node.ops[0])]()]
        return node
    return None


def arithmetic(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.BinOp) or type(node.op) not in ARITHMETIC:
        return None
    if any(
        isinstance(side, ast.Constant | ast.JoinedStr | ast.List | ast.Tuple | ast.Dict)
        and not _is_number(side)
        for side in (node.left, node.right)
    ):  # texts and lists
        return None
    node.op = ARITHMETIC[type(node.op)]()
    return node


def complement(node: ast.AST) -> ast.AST | None:
    """1 - x becomes x."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return None
    return node.right if isinstance(node.left, ast.Constant) and node.left.value == 1 else None


def constant(node: ast.AST) -> ast.AST | None:
    """An integer becomes the next, a fraction its double."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return ast.Constant(node.value + 1)
    if isinstance(node, ast.Constant) and isinstance(node.value, float):
        return ast.Constant(2 * node.value or 1.0)
    return None


def sign(node: ast.AST) -> ast.AST | None:
    return node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else None


def condition(node: Any) -> ast.AST | None:
    """A test is negated; `places` offers only tests. A single comparison has a change of its own."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return None
    return node.operand if isinstance(node, ast.UnaryOp) else ast.UnaryOp(ast.Not(), node)


def junction(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return node
    return None


def switch(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
        return node
    return None


def arguments(node: ast.AST) -> ast.AST | None:
    """The first two arguments in each other's place."""
    if (
        not isinstance(node, ast.Call)
        or len(node.args) < 2
        or ast.dump(node.args[0]) == ast.dump(node.args[1])
    ):
        return None
    if any(isinstance(argument, ast.Starred) for argument in node.args[:2]):
        return None
    node.args[:2] = node.args[1::-1]
    return node


def statement(node: ast.AST) -> ast.AST | None:
    """A statement that only has an effect is dropped."""
    effect = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    stored = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    if effect or stored or isinstance(node, ast.AugAssign | ast.Raise):
        return ast.Pass()
    return None


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        comparison, arithmetic, complement, constant, sign, condition, junction, switch, arguments, statement,
    )
}  # fmt: skip


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)
