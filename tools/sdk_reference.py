"""docs/sdk-reference.md, from what `import lakemq` offers and its docstrings. What begins with
`Internal` is for the SDK itself and left out."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Iterator
from typing import Any

import lakemq
from tools.source_attributes import Attribute, fields_of, names_of, set_by_init

_INTRODUCTION = """\
# Reference of the SDK

<!-- Generated from docstrings by `make generate`; do not edit. -->

Everything that `import lakemq` offers. [sdk.md](sdk.md) shows how it is used; classes whose names
begin with `Sync` are the blocking faces of the ones without.
"""
_ALIASES = {
    "lakemq.broker_core.api.types": ["Headers"],
    "lakemq.plugins.native.sdk.arguments": ["Config"],
    "lakemq.plugins.native.sdk.consumer.corrupt": ["OnCorrupt", "CorruptCallback"],
    "lakemq.plugins.native.sdk.consumer.options": ["Partitions", "Callback"],
    "lakemq.plugins.native.sdk.consumer.starts": ["Where", "Start"],
    "lakemq.plugins.native.sdk.net.login": ["Mechanism"],
    "lakemq.plugins.native.sdk.producer.options": ["DeliveryCallback"],
    "lakemq.plugins.native.sdk.serializing": [
        "Serialize", "Deserialize", "Serializing", "Deserializing",
    ],
}  # fmt: skip
"""Module -> names of types that signatures use."""
_INTERNAL = "Internal"
_BUILT_IN = (object, BaseException, Exception, tuple, dict, int, str)


def sdk_reference() -> str:
    offered = {name: getattr(lakemq, name) for name in sorted(lakemq.__all__)}
    functions = {name: one for name, one in offered.items() if inspect.isfunction(one)}
    classes = {name: one for name, one in offered.items() if inspect.isclass(one)}
    errors = {name: one for name, one in classes.items() if issubclass(one, BaseException)}
    parts = [_INTRODUCTION, "## Functions\n"]
    parts += [_function(name, one, "###") for name, one in functions.items()]
    parts.append("## Classes\n")
    parts += [_class(name, one) for name, one in classes.items() if name not in errors]
    parts += ["## Types in signatures\n", *_aliases(), "## Errors\n", _errors(errors)]
    return "\n".join(parts).rstrip() + "\n"


def _class(name: str, one: type[Any]) -> str:
    text = [f"### {name}\n", _words(one), _made_by(name, one)]
    if _has_fields(one):
        text.append("\n".join(map(_field, fields_of(one))) + "\n")
    else:
        told = [each for each in set_by_init(one) if not each.text.startswith(_INTERNAL)]
        text += [_field(each._replace(default="")) + "\n" for each in told]
    methods = [_method(member, value) for member, value in _public(one)]
    return "\n".join(part for part in [*text, *methods] if part)


def _made_by(name: str, one: type[Any]) -> str:
    """How it is made, of what applications make themselves."""
    init = vars(one).get("__init__")
    made = (one.__doc__ or "").startswith("Made by ")
    if made or not inspect.isfunction(init) or not init.__doc__:
        return ""
    return f"`{name}{_signature(init)}`\n\n{inspect.cleandoc(init.__doc__)}\n"


def _has_fields(one: type[Any]) -> bool:
    """Whether it is a data class, a named tuple, a typed dict or an enumeration."""
    return (
        dataclasses.is_dataclass(one)
        or issubclass(one, (tuple, enum.Enum))
        or hasattr(one, "__total__")
    )


def _field(each: Attribute) -> str:
    kind = f": {each.kind}" if each.kind else ""
    default = "" if not each.default or "field(" in each.default else f" = {each.default}"
    text = " ".join(each.text.split())
    return f"- **`{each.name}{kind}{default}`** {text}".rstrip()


def _aliases() -> Iterator[str]:
    for module, names in _ALIASES.items():
        for each in names_of(module, names):
            yield f"### {each.name}\n\n`{each.default}`\n"
            if each.text:
                yield f"{' '.join(each.text.split())}\n"


def _public(one: type[Any]) -> Iterator[tuple[str, Any]]:
    """Members that are ours and have a docstring, those of base classes too."""
    for member in sorted(dir(one)):
        owner = next((base for base in one.__mro__ if member in vars(base)), object)
        if member.startswith("_") or owner in _BUILT_IN:
            continue
        value = vars(owner)[member]
        if (_function_of(value).__doc__ or "").startswith(_INTERNAL):
            continue
        found = getattr(one, member)
        if isinstance(value, property) or inspect.isfunction(found) or inspect.ismethod(found):
            yield member, value


def _function_of(value: Any) -> Any:
    if isinstance(value, property):
        return value.fget
    return getattr(value, "__func__", value)


def _method(member: str, value: Any) -> str:
    if isinstance(value, property):
        return f"- **`{member}`** {_inline(value.fget)}\n"
    function = _function_of(value)
    return f"- **`{member}{_signature(function)}`** {_inline(function)}\n"


def _function(name: str, one: Any, level: str) -> str:
    return f"{level} {name}\n\n`{name}{_signature(one)}`\n\n{_words(one)}"


def _signature(function: Any) -> str:
    shown = inspect.signature(function)
    parameters = [
        each.replace(annotation=_Plain(each.annotation))
        for each in shown.parameters.values()
        if each.name not in ("self", "cls")
    ]
    returned = _Plain(shown.return_annotation)
    return str(shown.replace(parameters=parameters, return_annotation=returned))


class _Plain:
    """An annotation as it is written in the source."""

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation

    def __repr__(self) -> str:
        written = isinstance(self._annotation, str)
        return self._annotation if written else inspect.formatannotation(self._annotation)


def _words(one: Any) -> str:
    """The docstring, if it is its own; dataclasses get one made of their signature otherwise."""
    text = inspect.cleandoc(vars(one).get("__doc__") or one.__doc__ or "")
    return f"{text}\n" if text and not text.startswith("Built-in") else ""


def _inline(function: Any) -> str:
    return inspect.cleandoc(function.__doc__ or "").replace("\n\n", " ").replace("\n", " ")


def _errors(errors: dict[str, type[BaseException]]) -> str:
    rows = ["[sdk.md](sdk.md#errors) says when each is raised.\n", "| error | code | may pass |"]
    rows.append("|---|---|---|")
    for name, one in errors.items():
        passes = "yes" if getattr(one, "retriable", False) else "no"
        rows.append(f"| `{name}` | `{getattr(one, 'code', '')}` | {passes} |")
    return "\n".join(rows) + "\n"
