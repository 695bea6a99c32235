"""What settings take, in the words of the documentation."""

from __future__ import annotations

import json
import types
import typing
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def limits_of(info: FieldInfo) -> list[str]:
    """Such as `>= 1`, `<= 65535`."""
    found = []
    for each in info.metadata:
        for attribute, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
            bound = getattr(each, attribute, None)
            if bound is not None:
                found.append(f"{sign} {bound}")
    return found


def type_name(annotation: Any) -> str:
    """What a setting takes, in words: `whole number`, `list of text`, `table`."""
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{json.dumps(each)}`" for each in arguments)
    if origin is typing.Annotated:
        return type_name(arguments[0])
    if origin in (typing.Union, types.UnionType):
        names = [type_name(each) for each in arguments if each is not type(None)]
        return " or ".join(dict.fromkeys(names))
    if origin in (list, tuple, set, frozenset):
        return f"list of {type_name(arguments[0])}"
    if origin is dict:
        return "table"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}.get(
        annotation, str(getattr(annotation, "__name__", annotation))
    )
