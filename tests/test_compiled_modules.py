"""Modules that mypyc compiles for wheels mean the same as Python (docs/decisions/0044)."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("lakemq", "meta_service", "broker_core", "plugins", "spark_plugin")
CONSUMING = {
    "all", "any", "dict", "extend", "fromkeys", "frozenset", "join", "list", "max", "min",
    "set", "sorted", "sum", "tuple", "update",
}  # fmt: skip
"""What takes a generator to its end at once, so that a list in its place makes no difference; `all`
and `any` end early, but are loops in compiled code."""


def compiled() -> set[Path]:
    """Files that `pyproject.toml` names, below the folders that `lakemq/` holds links to."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        targets = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]
    names = targets["wheel"]["hooks"]["mypyc"]["include"]
    found = {path for name in names for path in ROOT.glob(name.removeprefix("lakemq/"))}
    return {path for path in found if path.name != "__init__.py"}


COMPILED = sorted(compiled())


def module_of(path: Path) -> str:
    return "lakemq." + ".".join(path.relative_to(ROOT).with_suffix("").parts)


def lazy_generators(tree: ast.AST) -> Iterator[int]:
    """Lines of generator expressions that may not be taken to their end."""
    consumed = set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) == 1:
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            name = node.func.attr if isinstance(node.func, ast.Attribute) else name
            consumed.update(node.args if name in CONSUMING else ())
        elif isinstance(node, ast.Starred) or (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
        ):
            consumed.add(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.GeneratorExp) and node not in consumed:
            yield node.lineno


def bases_of(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """(class, module of a base that was imported by name, its name)."""
    imported = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            name = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(name, ast.Name) and name.id in imported:
                yield node.name, *imported[name.id]


def test_something_is_compiled() -> None:
    assert len(COMPILED) > 50


@pytest.mark.parametrize("path", COMPILED, ids=module_of)
def test_no_generator_is_left_unfinished(path: Path) -> None:
    """mypyc makes lists of generator expressions: what only begins one would do all of it."""
    lines = list(lazy_generators(ast.parse(path.read_text())))
    assert lines == [], f"{path}: write a function that yields"


def test_nothing_interpreted_inherits_from_what_is_compiled() -> None:
    """mypyc's classes allow it to none but their own; the others fail where they are used first."""
    modules = {module_of(path) for path in COMPILED}
    wrong = [
        f"{path.relative_to(ROOT)}: {name} inherits from {base}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if path not in set(COMPILED)
        for name, module, base in bases_of(ast.parse(path.read_text()))
        if module in modules
    ]
    assert wrong == []
