"""Messages for wrong settings: pydantic's errors as sentences, and the nearest known names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel

_TAKES: Final = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "literal_error": "{expected}",
    "less_than_equal": "{le} at most",
    "less_than": "less than {lt}",
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "finite_number": "a finite number",
    "string_too_short": "{min_length} characters or more",
    "string_too_long": "{max_length} characters at most",
    "too_short": "{min_length} entries or more",
    "too_long": "{max_length} entries at most",
}
"""pydantic's kind of error -> what the setting takes."""
_FORMS: Final = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$": (
        "1 to 63 letters, digits, dots, hyphens and underscores, a letter or digit first"
    ),
    r"^[a-z0-9][a-z0-9_-]{0,30}$": (
        "1 to 31 small letters, digits, hyphens and underscores, a letter or digit first"
    ),
    r"^https?://": "a URL that begins with http:// or https://",
    r"^(user:.+|role:.+|anonymous|any)$": "user:<name>, role:<name>, anonymous or any",
    r"^[A-Za-z_][\w.]*\.[A-Za-z_]\w*$": "the dotted path of a class, such as package.module.Class",
}
"""Patterns of settings -> what they mean."""


def nearest(name: str, known: list[str]) -> str:
    """The end of an error message: the known name that is meant, or all that are known."""
    close = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"


def complaint(error: Any, model: type[BaseModel]) -> str:
    """pydantic's finding in our words."""
    if error["type"] == "extra_forbidden":
        name = str(error["loc"][-1])
        return f"unknown setting{nearest(name, _fields_at(model, error['loc'][:-1]))}"
    if error["type"] == "missing":
        return "this setting is required"
    if error["type"] == "union_tag_not_found":
        return "kind is missing"
    if error["type"] == "union_tag_invalid":
        context = error["ctx"]
        known = context["expected_tags"].replace("'", "").split(", ")
        return f"unknown kind {context['tag']!r}{nearest(context['tag'], known)}"
    said = _said(error)
    if isinstance(error["input"], Mapping):  # all of a table says nothing, and may hold a secret
        return said
    return f"{said}, not {error['input']!r}"


def _said(error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _TAKES:
        return f"it takes {_TAKES[kind].format(**context)}"
    if kind == "string_pattern_mismatch":
        form = _FORMS.get(context["pattern"])
        return f"it takes {form}" if form else f"it does not match {context['pattern']}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]}"


def _fields_at(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """Names of the settings that are known at `path` below `model`."""
    models = [model]
    for part in path:
        if isinstance(part, int):
            continue
        of_kind = [each for each in models if part in _kinds(each)]
        models = of_kind or [
            inner
            for each in models
            if part in each.model_fields
            for inner in models_in(each.model_fields[part].annotation)
        ]
    return [name for each in models or [model] for name in each.model_fields]


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    """What `kind` says in tables of that model, where it tells several apart."""
    return get_args(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Models of the tables that a setting of that type holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for each in get_args(annotation) for found in models_in(each)]
