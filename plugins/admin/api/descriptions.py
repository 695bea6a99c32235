"""What models say of their fields: the texts below them.

pydantic can read them too (`use_attribute_docstrings`), but does so when a class is made, in each
process that only imports it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema


class DescribedSchema(GenerateJsonSchema):
    """JSON schemas of models in which each field has its description."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """As pydantic calls it for each model."""
        found = super().model_schema(schema)
        for name, text in texts_of(schema["cls"]).items():
            # Absent: a parent's field that the model is without.
            if name in found.get("properties", {}):
                found["properties"][name]["description"] = text
        return found


def texts_of(model: type[BaseModel]) -> dict[str, str]:
    """Field -> the text below it, also for fields of its parents."""
    found: dict[str, str] = {}
    for parent in reversed(model.__mro__[: model.__mro__.index(BaseModel)]):
        found |= _texts(parent.__module__).get(parent.__name__, {})
    return found


@functools.cache
def _texts(module: str) -> Mapping[str, Mapping[str, str]]:
    """Of each class: field -> the text below it. Nothing without the source."""
    try:
        made = ast.parse(inspect.getsource(sys.modules[module])).body
    except (OSError, TypeError):
        return {}
    return {each.name: dict(_fields(each)) for each in made if isinstance(each, ast.ClassDef)}


def _fields(made: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in itertools.pairwise(made.body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            yield field.target.id, inspect.cleandoc(below.value.value)
