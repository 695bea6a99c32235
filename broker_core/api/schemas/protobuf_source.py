"""Protobuf files as source text, of the descriptors that Confluent's clients send in its place.

What the text can't say is never dropped: `normal` of the descriptor and of what `protoc` makes of
the text must be the same bytes, and who writes a text compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    OneofDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.message import DecodeError

from lakemq.broker_core.api.errors import InvalidRequest

_TEXTS: Final = (FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BYTES)
_NAMED: Final = (FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.TYPE_ENUM)
_FIELD_MAX: Final = 2**29
_ENUM_MAX: Final = 2**31 - 1


def parsed_descriptor(data: bytes) -> FileDescriptorProto:
    """Raises InvalidRequest."""
    try:
        return FileDescriptorProto.FromString(data)
    except DecodeError:
        raise InvalidRequest("schema: neither Protobuf source nor a FileDescriptorProto") from None


def source_of(file: FileDescriptorProto) -> str:
    """The file as source. Raises InvalidRequest: a part that this writes no source of."""
    if file.syntax not in ("", "proto2", "proto3"):
        raise InvalidRequest(f"schema: syntax {file.syntax!r} is neither proto2 nor proto3")
    try:
        return "\n".join(_file_lines(file)) + "\n"
    # Text that is not UTF-8 is bytes; numbers of enums may be of other versions.
    except (TypeError, AttributeError, KeyError) as error:
        raise InvalidRequest(
            f"schema: the descriptor can't be written as source: {error}"
        ) from None


def normal(file: FileDescriptorProto) -> bytes:
    """The same for files that say the same: without the file's name, comments, and names for JSON
    that follow from the others."""
    copy = FileDescriptorProto.FromString(file.SerializeToString())
    copy.ClearField("name")
    copy.ClearField("source_code_info")
    if copy.syntax == "proto2":
        copy.ClearField("syntax")
    for message in copy.message_type:
        _simplify(message)
    for service in copy.service:
        for method in service.method:
            if not method.options.ByteSize():  # of an empty body
                method.ClearField("options")
    return copy.SerializeToString(deterministic=True)


def _simplify(message: DescriptorProto) -> None:
    for field in message.field:
        if field.json_name == _json_name(field.name):
            field.ClearField("json_name")
    for nested in message.nested_type:
        _simplify(nested)
    # Entries of maps stand among them where the fields were written.
    nested_types = sorted(message.nested_type, key=lambda each: each.name)
    message.ClearField("nested_type")
    message.nested_type.extend(nested_types)


def _json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


# ------------------------------------------------------------ lines


def _file_lines(file: FileDescriptorProto) -> Iterator[str]:
    _none(file.extension, "extend")
    yield f'syntax = "{file.syntax or "proto2"}";'
    if file.package:
        yield f"package {file.package};"
    for index, path in enumerate(file.dependency):
        kind = "public " if index in file.public_dependency else ""
        yield f"import {kind}{_quoted(path)};"
    yield from _option_lines(file.options)
    for message in file.message_type:
        yield from _message_lines(message, file.syntax)
    for enum in file.enum_type:
        yield from _enum_lines(enum)
    for service in file.service:
        yield from _service_lines(service)


def _message_lines(message: DescriptorProto, syntax: str) -> Iterator[str]:
    _none(message.extension, "extend")
    yield f"message {message.name} {{"
    yield from _inside(_option_lines(message.options))
    maps = {each.name: each for each in message.nested_type if each.options.map_entry}
    for nested in message.nested_type:
        if not nested.options.map_entry:
            yield from _inside(_message_lines(nested, syntax))
    for enum in message.enum_type:
        yield from _inside(_enum_lines(enum))
    open_oneof: OneofDescriptorProto | None = None
    for field in message.field:
        oneof = _oneof_of(field, message)
        if open_oneof is not None and oneof is not open_oneof:
            yield "  }"
        if oneof is not None and oneof is not open_oneof:
            yield f"  oneof {oneof.name} {{"
            yield from _inside(_inside(_option_lines(oneof.options)))
        open_oneof = oneof
        yield ("    " if oneof is not None else "  ") + _field_line(field, maps, syntax)
    if open_oneof is not None:
        yield "  }"
    yield from _inside(_reserved_lines(message))
    yield "}"


def _oneof_of(field: FieldDescriptorProto, message: DescriptorProto) -> OneofDescriptorProto | None:
    """None also for a field that is `optional` in proto3, whose oneof is not written."""
    index = field.oneof_index
    if not field.HasField("oneof_index") or field.proto3_optional:
        return None
    if not 0 <= index < len(message.oneof_decl):
        raise InvalidRequest(f"schema: field {field.name} is of a oneof that does not exist")
    return message.oneof_decl[index]


def _field_line(field: FieldDescriptorProto, maps: dict[str, DescriptorProto], syntax: str) -> str:
    entry = maps.get(field.type_name.rpartition(".")[2])
    if entry is not None and len(entry.field) == 2:
        key, value = entry.field
        kind = f"map<{_type_name(key)}, {_type_name(value)}>"
    else:
        kind = _label(field, syntax) + _type_name(field)
    options = list(_options(field.options))
    if field.HasField("default_value"):
        options.insert(0, f"default = {_default(field)}")
    if field.HasField("json_name") and field.json_name != _json_name(field.name):
        options.append(f"json_name = {_quoted(field.json_name)}")
    shown = f" [{', '.join(options)}]" if options else ""
    return f"{kind} {field.name} = {field.number}{shown};"


def _label(field: FieldDescriptorProto, syntax: str) -> str:
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return "repeated "
    if field.label == FieldDescriptorProto.LABEL_REQUIRED:
        return "required "
    in_oneof = field.HasField("oneof_index") and not field.proto3_optional
    return "optional " if field.proto3_optional or (syntax != "proto3" and not in_oneof) else ""


def _type_name(field: FieldDescriptorProto) -> str:
    if field.type in _NAMED:
        return field.type_name
    if field.type == FieldDescriptorProto.TYPE_GROUP or not field.type:
        raise InvalidRequest(f"schema: field {field.name} is a group, or of no type")
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _default(field: FieldDescriptorProto) -> str:
    if field.type == FieldDescriptorProto.TYPE_BYTES:
        return f'"{field.default_value}"'  # escaped already
    return _quoted(field.default_value) if field.type in _TEXTS else field.default_value


def _reserved_lines(message: DescriptorProto) -> Iterator[str]:
    for extensions in message.extension_range:
        yield f"extensions {_range(extensions.start, extensions.end - 1, _FIELD_MAX - 1)};"
    for reserved in message.reserved_range:
        yield f"reserved {_range(reserved.start, reserved.end - 1, _FIELD_MAX - 1)};"
    if message.reserved_name:
        yield f"reserved {', '.join(map(_quoted, message.reserved_name))};"


def _range(first: int, last: int, most: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last == most else last}"


def _enum_lines(enum: EnumDescriptorProto) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    yield from _inside(_option_lines(enum.options))
    for value in enum.value:
        options = ", ".join(_options(value.options))
        yield f"  {value.name} = {value.number}{f' [{options}]' if options else ''};"
    for reserved in enum.reserved_range:
        yield f"  reserved {_range(reserved.start, reserved.end, _ENUM_MAX)};"
    if enum.reserved_name:
        yield f"  reserved {', '.join(map(_quoted, enum.reserved_name))};"
    yield "}"


def _service_lines(service: ServiceDescriptorProto) -> Iterator[str]:
    yield f"service {service.name} {{"
    yield from _inside(_option_lines(service.options))
    for method in service.method:
        asked = ("stream " if method.client_streaming else "") + method.input_type
        given = ("stream " if method.server_streaming else "") + method.output_type
        options = [*_option_lines(method.options)]
        shown = f" {{ {' '.join(options)} }}" if options else ";"
        yield f"  rpc {method.name}({asked}) returns ({given}){shown}"
    yield "}"


def _option_lines(options: Any) -> Iterator[str]:
    return (f"option {each};" for each in _options(options))


def _options(options: Any) -> Iterator[str]:
    """`name = value` of each that is set; options of other files are left to the comparison."""
    for field, value in options.ListFields():
        if field.name == "map_entry":
            continue
        if not isinstance(value, (str, int, float)):  # a message, or several values
            raise InvalidRequest(f"schema: option {field.name} can't be written as source")
        if field.enum_type is not None:
            yield f"{field.name} = {field.enum_type.values_by_number[value].name}"
        elif isinstance(value, bool):
            yield f"{field.name} = {str(value).lower()}"
        else:
            yield f"{field.name} = {_quoted(value) if isinstance(value, str) else value}"


def _none(parts: Iterable[object], what: str) -> None:
    if any(True for _ in parts):
        raise InvalidRequest(f"schema: {what!r} of Protobuf is not taken in a descriptor")


def _quoted(text: str) -> str:
    shown = (
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in text.encode()
    )
    return f'"{"".join(shown)}"'


def _inside(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
