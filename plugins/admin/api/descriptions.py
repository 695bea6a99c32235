"""What models say of their fields: the texts below them.

pydantic can read them too (`use_attribute_docstrings`), but does so when a class is made, in each
process that only imports it.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterable, Iterator

from pydantic import BaseModel


def describe(bases: Iterable[type[BaseModel]]) -> None:
    """Give every field of all models that derive from these its description, once."""
    models = list(dict.fromkeys(itertools.chain.from_iterable(map(_derived, bases))))
    for model in models:
        for parent in reversed(model.__mro__):
            if issubclass(parent, BaseModel) and parent is not BaseModel:
                for name, text in _texts(parent):
                    field = model.model_fields.get(name)
                    if field is not None:
                        field.description = text
    for model in models:
        model.model_rebuild(force=True)


def _derived(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _derived(model)


def _texts(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """(field, the text below it)."""
    try:
        (made,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    except (OSError, TypeError):  # made by a function, as generic ones are
        return
    assert isinstance(made, ast.ClassDef)
    for field, below in itertools.pairwise(made.body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            yield field.target.id, inspect.cleandoc(below.value.value)
