"""Small bugs in a module's syntax tree: compare flips, off-by-one, `and` for `or`, a dropped `not`,
other constants, statements left out, arguments swapped. Pure.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

_COMPARES: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_SKIPPED_CALLS: Final = ("cast", "TypeVar", "NewType", "Struct", "compile", "field", "dataclass")


class Mutant(NamedTuple):
    """One planted bug."""

    name: str
    """`function: line as it was -> as it is`, with a number where there are several alike. Does not
    change when other lines do."""
    line: int
    source: str
    """The whole module with the bug in it."""


Change = Callable[[ast.AST], ast.AST]


def mutants(source: str) -> Iterator[Mutant]:
    """Every small bug that the module can be given."""
    tree = ast.parse(source)
    seen: Counter[str] = Counter()
    for path, node, where in _places(tree, (), "module"):
        for change in _changes(node):
            twin = copy.deepcopy(tree)
            was = _statement_text(twin, path)
            if not _replace(twin, path, change):
                continue
            name = f"{where}: {was} -> {_statement_text(twin, path)}"
            seen[name] += 1
            if seen[name] > 1:
                name += f" ({seen[name]})"
            yield Mutant(
                name, getattr(node, "lineno", 0), ast.unparse(ast.fix_missing_locations(twin))
            )


Path = tuple[tuple[str, int | None], ...]
"""From the root: (field, place in its list)."""


def _places(node: ast.AST, path: Path, where: str) -> Iterator[tuple[Path, ast.AST, str]]:
    """Every node that may be changed; not annotations, docstrings, imports, decorators."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        for number, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _is_skipped(child):
                continue
            here = where
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                here = child.name if where == "module" else f"{where}.{child.name}"
            place = (*path, (field, number))
            yield place, child, here
            yield from _places(child, place, here)


def _is_skipped(node: ast.AST) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.JoinedStr):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return True
    if isinstance(node, ast.Call):
        named = node.func
        name = named.id if isinstance(named, ast.Name) else getattr(named, "attr", "")
        return name in _SKIPPED_CALLS
    return isinstance(node, ast.Assign) and "__slots__" in ast.unparse(node.targets[0])


def _changes(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            if type(operator) in _COMPARES:
                yield _other_compare(place, _COMPARES[type(operator)])
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _ARITHMETIC:
        yield _other_operator(_ARITHMETIC[type(node.op)])
    elif isinstance(node, ast.BoolOp):
        yield _other_operator(ast.Or if isinstance(node.op, ast.And) else ast.And)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield lambda found: found.operand  # type: ignore[attr-defined]
    elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        value = node.value
        yield lambda found: ast.Constant(not value if isinstance(value, bool) else value + 1)
    elif isinstance(node, ast.Call):
        yield from _call_changes(node)
    if _may_be_left_out(node):
        yield lambda found: ast.Pass()


def _call_changes(node: ast.Call) -> Iterator[Change]:
    first, *more = [*node.args, None]
    second = more[0] if more else None
    simple = (ast.Name, ast.Attribute)
    if isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        yield _other_extreme
        return
    both = isinstance(first, simple) and isinstance(second, simple)
    if both and ast.dump(first) != ast.dump(second):  # type: ignore[arg-type] # neither is None
        yield _swapped


def _may_be_left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return any(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Delete | ast.Break | ast.Continue)


def _other_compare(place: int, wanted: type[ast.cmpop]) -> Change:
    def change(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.Compare)
        node.ops[place] = wanted()
        return node

    return change


def _other_operator(wanted: type[ast.AST]) -> Change:
    def change(node: ast.AST) -> ast.AST:
        node.op = wanted()  # type: ignore[attr-defined]
        return node

    return change


def _swapped(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Call)
    node.args[0], node.args[1] = node.args[1], node.args[0]
    return node


def _other_extreme(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    node.func.id = "max" if node.func.id == "min" else "min"
    return node


def _replace(tree: ast.AST, path: Path, change: Change) -> bool:
    """Whether the changed tree is still Python."""
    parent: ast.AST = tree
    for step in path[:-1]:
        parent = _child(parent, step)
    field, number = path[-1]
    made = change(_child(parent, path[-1]))
    if number is None:
        setattr(parent, field, made)
    else:
        getattr(parent, field)[number] = made
    try:
        compile(ast.unparse(ast.fix_missing_locations(tree)), "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _child(node: ast.AST, step: tuple[str, int | None]) -> ast.AST:
    field, number = step
    value = getattr(node, field)
    found: ast.AST = value if number is None else value[number]
    return found


def _statement_text(tree: ast.AST, path: Path) -> str:
    """First line of the innermost statement on the path."""
    node, found = tree, tree
    for step in path:
        node = _child(node, step)
        if isinstance(node, ast.stmt):
            found = node
        if not isinstance(node, ast.AST):
            break
    return ast.unparse(found).split("\n", 1)[0][:160]
