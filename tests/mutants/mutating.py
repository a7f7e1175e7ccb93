"""Small changes of a module's functions, one at a time: what a test suite has to notice.

Comparisons are shifted and turned round, conditions negated, ``and`` and ``or`` swapped, numbers are one
more, signs turn, results become None, and statements are left out. What only builds an error's text, states
an assumption or writes to a log is left alone.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Mutant(NamedTuple):
    """One change: the n-th of its function."""

    module: str
    function: str
    """With its class."""
    digest: str
    """Of the function as it is: a mutant of another text is another one."""
    number: int
    line: int
    change: str

    @property
    def name(self) -> str:
        """What stands for it in files."""
        return f"{self.module}:{self.function}:{self.digest}:{self.number}"


class Change(NamedTuple):
    """Where in a function, and what: a field of a node gets another value."""

    node: ast.AST
    field: str
    place: int | None
    value: Any
    text: str


def changes_of(function: ast.AST) -> Iterator[Change]:
    """Every change of a function, in the order of its text."""
    yield from _left_out(function)
    for node in _walk(function):
        yield from _changes_at(node)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when the function is called, but for what is left alone."""
    inside = node.body if isinstance(node, _FUNCTIONS) else ast.iter_child_nodes(node)
    for child in inside:
        if isinstance(child, ast.Assert | ast.JoinedStr | ast.arguments) or _is_strict(child):
            continue
        yield child
        if isinstance(child, ast.Raise) or _is_log(child):
            continue  # left out as a whole, or not at all
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield child.value
                yield from _walk(child.value)
            continue
        yield from _walk(child)


def _is_strict(node: ast.AST) -> bool:
    """``zip(..., strict=True)`` states an assumption."""
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _is_log(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    function = call.func if isinstance(call, ast.Call) else None
    value = function.value if isinstance(function, ast.Attribute) else None
    return isinstance(value, ast.Name) and value.id in {"logger", "_log"}


def _changes_at(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                for other in _COMPARISONS[type(operator)]:
                    text = f"{type(operator).__name__} to {other.__name__}"
                    yield Change(node, "ops", index, other(), text)
        case ast.BoolOp():
            other_bool = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield Change(node, "op", None, other_bool, "and to or, or to and")
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _OPERATORS:
            other_op = _OPERATORS[type(node.op)]
            yield Change(node, "op", None, other_op(), f"to {other_op.__name__}")
        case ast.Constant(value=bool(value)):
            yield Change(node, "value", None, not value, f"{value} to {not value}")
        case ast.Constant(value=int(number)):
            yield Change(node, "value", None, number + 1, f"{number} to {number + 1}")
        case ast.Return(value=ast.expr() as result) if not _is_constant(result):
            yield Change(node, "value", None, ast.Constant(None), "return None")
        case ast.If() | ast.While() | ast.IfExp() if not isinstance(node.test, ast.Compare):
            yield Change(node, "test", None, ast.UnaryOp(ast.Not(), node.test), "negated")
        case ast.comprehension():
            for index, _ in enumerate(node.ifs):
                yield Change(node, "ifs", index, ast.Constant(True), "no filter")
    yield from _left_out(node)


def _left_out(node: ast.AST) -> Iterator[Change]:
    """Statements of a block, each left out alone."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if not isinstance(block, list):
            continue
        for index, statement in enumerate(block):
            if _may_go(statement):
                yield Change(node, field, index, ast.Pass(), "left out")


def _may_go(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call() | ast.Await()):
            return not _is_log(statement)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            return True
        case ast.AugAssign() | ast.Delete() | ast.Raise() | ast.Break() | ast.Continue():
            return True
    return False


def _is_constant(node: ast.expr) -> bool:
    """Constants have changes of their own; None in the place of False changes nothing, mostly."""
    return isinstance(node, ast.Constant)


class MutatedModule:
    """The mutants of one file."""

    def __init__(self, path: Path, module: str) -> None:
        self.path = path
        self.module = module
        self._text = path.read_text()

    @cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self._text)

    def functions(self) -> Iterator[tuple[str, ast.stmt]]:
        """Functions and methods by name; those inside of a function belong to it."""
        for node in self._tree.body:
            if isinstance(node, _FUNCTIONS):
                yield node.name, node
            elif isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, _FUNCTIONS) and inner.name != "__repr__":
                        yield f"{node.name}.{inner.name}", inner

    def mutants(self) -> Iterator[Mutant]:
        """All of them."""
        for name, function in self.functions():
            digest = hashlib.sha256(ast.unparse(function).encode()).hexdigest()[:8]
            for number, change in enumerate(changes_of(function)):
                line = getattr(_at(change), "lineno", 0)
                yield Mutant(self.module, name, digest, number, line, change.text)

    def code_of(self, mutant: Mutant) -> CodeType:
        """The code of the function with the change."""
        function = dict(self.functions())[mutant.function]
        twin: Any = copy.deepcopy(function)
        change = list(changes_of(twin))[mutant.number]
        if change.place is None:
            setattr(change.node, change.field, change.value)
        else:
            getattr(change.node, change.field)[change.place] = change.value
        if "super()" in ast.unparse(function):
            # A function that calls it has a hidden variable, and has to keep it when the call is left out.
            twin.body.append(ast.parse("if False: __class__").body[0])
        return _compiled(self._tree, function, twin, str(self.path), mutant.function)


def _at(change: Change) -> Any:
    """The node that the change is about."""
    if change.place is None:
        return change.node
    found = getattr(change.node, change.field)[change.place]
    return found if hasattr(found, "lineno") else change.node


def _compiled(
    tree: ast.Module, function: ast.stmt, twin: ast.stmt, path: str, name: str
) -> CodeType:
    """The module compiled with one function replaced; the code of that function."""
    classes = [one.body for one in tree.body if isinstance(one, ast.ClassDef)]
    block = next(block for block in (tree.body, *classes) if function in block)
    place = block.index(function)
    block[place] = twin
    try:
        code = compile(ast.fix_missing_locations(tree), path, "exec")
    finally:
        block[place] = function
    for part in name.split("."):
        inner = [one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == part]
        # Of several of one name, as a property and its setter: decorators stand before the def.
        code = min(inner, key=lambda one: abs(one.co_firstlineno - function.lineno))
    return code


def put_in(module: ModuleType, mutant: Mutant, code: CodeType) -> None:
    """Give the living function the code of the mutant; in a forked process, as it stays."""
    owner: Any = module
    *classes, name = mutant.function.split(".")
    for part in classes:
        owner = vars(owner)[part]
    for function in _living(vars(owner)[name]):
        if function.__code__.co_firstlineno == code.co_firstlineno:
            function.__code__ = code
            return
    raise LookupError(f"{mutant.name} is not found in the running program")


def _living(found: Any) -> Iterator[Any]:
    """The functions behind decorators."""
    if hasattr(found, "__wrapped__"):
        yield from _living(found.__wrapped__)
    for name in ("fget", "fset", "func", "__func__"):
        inner = getattr(found, name, None)
        if inner is not None:
            yield from _living(inner)
    if hasattr(found, "__code__"):
        yield found
