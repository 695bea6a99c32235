"""What the source says of attributes: fields with the text below them, which is not there when the
program runs."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Attribute(NamedTuple):
    """One field of a class, or one name of a module."""

    name: str
    kind: str
    """Its type as it is written; empty: none is."""
    default: str
    """As it is written; empty: none."""
    text: str


def fields_of(one: type[Any]) -> list[Attribute]:
    """Fields of a data class, a named tuple, an enumeration or a typed dict, as they are written,
    those of its bases first."""
    found: dict[str, Attribute] = {}
    for base in reversed(_ours(one)):
        found |= {each.name: each for each in _assigned(_class(base).body, of_self=False)}
    return list(found.values())


def set_by_init(one: type[Any]) -> list[Attribute]:
    """Attributes that `__init__` sets and says something of."""
    found: dict[str, Attribute] = {}
    for base in reversed(_ours(one)):
        for made in _class(base).body:
            if isinstance(made, ast.FunctionDef) and made.name == "__init__":
                told = _assigned(made.body, of_self=True)
                found |= {each.name: each for each in told if each.text}
    return list(found.values())


def names_of(module: str, names: Iterable[str]) -> list[Attribute]:
    """Names that a module assigns: type aliases."""
    told = {each.name: each for each in _assigned(_module(module), of_self=False)}
    return [told[name] for name in names]


def _ours(one: type[Any]) -> list[type[Any]]:
    # A typed dict has only `dict` as its base.
    return [base for base in one.__mro__ if base.__module__.startswith("lakemq.")]


@functools.cache
def _module(name: str) -> Sequence[ast.stmt]:
    # The file with an extension module's source lies beside it.
    file = Path(str(sys.modules[name].__file__)).with_name(f"{name.rpartition('.')[2]}.py")
    return ast.parse(file.read_text()).body


def _class(one: type[Any]) -> ast.ClassDef:
    made = _module(one.__module__)
    return next(each for each in made if isinstance(each, ast.ClassDef) and _is(each, one))


def _is(made: ast.ClassDef, one: type[Any]) -> bool:
    return made.name == one.__qualname__


def _assigned(body: Sequence[ast.stmt], *, of_self: bool) -> Iterator[Attribute]:
    for made, below in itertools.pairwise([*body, ast.Pass()]):
        name, kind, value = _parts(made)
        if of_self:
            name = name.removeprefix("self.") if name.startswith("self.") else ""
        if name.isidentifier() and not name.startswith("_"):
            yield Attribute(name, kind, "" if value is None else ast.unparse(value), _text(below))


def _parts(made: ast.stmt) -> tuple[str, str, ast.expr | None]:
    if isinstance(made, ast.AnnAssign):
        return ast.unparse(made.target), ast.unparse(made.annotation), made.value
    if isinstance(made, ast.Assign) and len(made.targets) == 1:
        return ast.unparse(made.targets[0]), "", made.value
    return "", "", None


def _text(below: ast.stmt) -> str:
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
        text = below.value.value
        return inspect.cleandoc(text) if isinstance(text, str) else ""
    return ""
