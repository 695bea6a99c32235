"""Between protobuf messages and frozen dataclasses whose fields have the same names. No IO.

A field that may be None is absent in the message (or empty, where it has no presence), a tuple is
repeated, a dataclass or a plain tuple in it is a nested message. How a pair of types is converted
is found out once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import is_dataclass
from operator import attrgetter
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_type_hints

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

MessageType = TypeVar("MessageType", bound=Message)
ValueType = TypeVar("ValueType")
_Getter = Callable[[Any], Any]


def message_of(kind: type[MessageType], value: Any, **more: Any) -> MessageType:
    """A message of what `value`, a dataclass or a tuple in the order of the fields, holds; `more`:
    fields that a dataclass lacks."""
    if isinstance(value, tuple):
        fields: Any = kind.DESCRIPTOR.fields
        return kind(**{field.name: each for field, each in zip(fields, value, strict=True)})
    encoders = _encoders(cast(Any, kind), cast(Any, type(value)))
    return kind(**{name: get(value) for name, get in encoders}, **more)


@functools.cache
def _encoders(kind: Any, value_type: Any) -> list[tuple[str, _Getter]]:
    # Once for each pair of types: looking hints up costs more than the conversion.
    known = get_type_hints(value_type)
    return [(each.name, _encoder(each)) for each in kind.DESCRIPTOR.fields if each.name in known]


def _encoder(field: FieldDescriptor) -> _Getter:
    get = attrgetter(field.name)
    if field.message_type is None or _is_map(field):
        return get
    nested = GetMessageClass(field.message_type)
    if field.is_repeated:
        return lambda value: [message_of(nested, each) for each in get(value)]
    return lambda value: None if get(value) is None else message_of(nested, get(value))


def value_of(kind: type[ValueType], message: Message, **more: Any) -> ValueType:
    """The dataclass that a message holds; `more`: fields that the message lacks."""
    decoders = _decoders(cast(Any, kind), message.DESCRIPTOR)
    return kind(**{name: get(message) for name, get in decoders}, **more)


@functools.cache
def _decoders(kind: Any, descriptor: Descriptor) -> list[tuple[str, _Getter]]:
    fields: Any = descriptor.fields_by_name
    hints = get_type_hints(kind)
    return [(name, _decoder(fields[name], hints[name])) for name in hints if name in fields]


def _decoder(field: FieldDescriptor, hint: Any) -> _Getter:
    name, get = field.name, attrgetter(field.name)
    if _is_map(field):
        return lambda message: dict(get(message))
    if field.is_repeated:
        decode = _item_decoder(field, get_args(hint)[0])
        return lambda message: tuple(map(decode, get(message))) if decode else tuple(get(message))
    if field.message_type is not None:
        return lambda message: value_of(hint, get(message)) if message.HasField(name) else None
    if NoneType not in get_args(hint):
        return get
    if field.has_presence:
        return lambda message: get(message) if message.HasField(name) else None
    # Without presence an empty field and an absent one are the same on the wire.
    return lambda message: get(message) or None


def _item_decoder(field: FieldDescriptor, hint: Any) -> _Getter | None:
    if field.message_type is None:
        return None
    if is_dataclass(hint):
        return functools.partial(value_of, cast(Any, hint))
    return attrgetter(*(each.name for each in cast(Any, field.message_type.fields)))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
