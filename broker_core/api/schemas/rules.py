"""Whether a reader of one schema can read what was written with another.

Avro: the checker of Apache's own library. JSON Schema and Protobuf have none in Python, so the
rules are here, on the safe side: what can't be shown to fit is reported as a problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_TYPES: Final = ("null", "boolean", "object", "array", "number", "string", "integer")
_UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_AS_THEY_ARE: Final = (
    "pattern", "format", "multipleOf", "uniqueItems", "const", "not", "if", "then", "else",
    "patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "contains",
    "minContains", "maxContains", "prefixItems", "oneOf", "allOf", "anyOf", "$ref", "$dynamicRef",
    "unevaluatedProperties", "unevaluatedItems",
)  # fmt: skip
"""What a reader may demand only when the writer does in the very same words."""


def directions(compatibility: str) -> tuple[bool, bool, bool]:
    """(new reads old, old reads new, all older versions count) of a rule's name."""
    kind = compatibility.removesuffix("-transitive")
    return (
        kind in ("backward", "full"),
        kind in ("forward", "full"),
        compatibility.endswith("-transitive"),
    )


def json_problems(reader: Any, writer: Any) -> Iterator[str]:
    """Why a value that fits `writer` may not fit `reader`."""
    try:
        yield from _json_problems(reader, writer, "$")
    except (AttributeError, TypeError, RecursionError):  # other drafts have other forms of words
        yield "$: the schemas can't be compared"


def _json_problems(reader: Any, writer: Any, path: str) -> Iterator[str]:
    if reader is True or reader == {} or reader == writer or writer is False:
        return
    if reader is False:
        yield f"{path}: nothing is allowed any more"
        return
    old: Mapping[str, Any] = {} if writer is True else writer
    yield from _types(reader, old, path)
    yield from _bounds(reader, old, path)
    if "enum" in reader:
        allowed = old.get("enum", [old["const"]] if "const" in old else None)
        if allowed is None or any(each not in reader["enum"] for each in allowed):
            yield f"{path}: enum takes less"
    for word in _AS_THEY_ARE:
        if word in reader and reader[word] != old.get(word):
            yield f"{path}: {word} is new or not as it was"
    yield from _objects(reader, old, path)
    if "items" in reader:
        yield from _json_problems(reader["items"], old.get("items", True), f"{path}[*]")


def _types(reader: Mapping[str, Any], writer: Mapping[str, Any], path: str) -> Iterator[str]:
    def of(schema: Mapping[str, Any]) -> set[str]:
        found = schema.get("type", list(_TYPES))
        names = {found} if isinstance(found, str) else set(found)
        return names | {"integer"} if "number" in names else names

    gone = of(writer) - of(reader)
    if gone:
        yield f"{path}: type {', '.join(sorted(gone))} is not taken any more"


def _bounds(reader: Mapping[str, Any], writer: Mapping[str, Any], path: str) -> Iterator[str]:
    for word in _UPPER:
        if word in reader and (word not in writer or writer[word] > reader[word]):
            yield f"{path}: {word} is lower or new"
    for word in _LOWER:
        trivial = not word.endswith("inimum") and not reader.get(word)
        if word in reader and not trivial and (word not in writer or writer[word] < reader[word]):
            yield f"{path}: {word} is higher or new"


def _objects(reader: Mapping[str, Any], writer: Mapping[str, Any], path: str) -> Iterator[str]:
    for name in sorted(set(reader.get("required", ())) - set(writer.get("required", ()))):
        yield f"{path}.{name}: is required now"
    new, old = reader.get("properties", {}), writer.get("properties", {})
    open_new, open_old = (each.get("additionalProperties", True) for each in (reader, writer))
    for name in sorted(new.keys() | old.keys()):
        if name not in old and open_old is not False:
            # What was written may have had anything by that name.
            yield from _json_problems(new[name], open_old, f"{path}.{name}")
        elif name in old:
            yield from _json_problems(new.get(name, open_new), old[name], f"{path}.{name}")
    yield from _json_problems(open_new, open_old, f"{path}.*")


def avro_problems(reader: Any, writer: Any) -> Iterator[str]:
    """As Apache Avro's checker has it."""
    import avro.errors
    import avro.schema
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

    try:
        new, old = (avro.schema.parse(json.dumps(each)) for each in (reader, writer))
    except (avro.errors.AvroException, RecursionError) as error:  # it takes less than fastavro
        yield f"$: the schemas can't be compared: {str(error)[:200]}"
        return
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]  # the library's
    found = checker.get_compatibility(new, old)
    if found.compatibility is not SchemaCompatibilityType.compatible:
        for place, why in zip(
            sorted(found.locations), map(str, found.incompatibilities), strict=False
        ):
            words = why.rpartition(".")[2].replace("_", " ")
            yield f"{place}: {words} ({', '.join(found.messages)})"


_WIRE: Final[dict[int, str]] = {
    **dict.fromkeys((3, 4, 5, 8, 13, 14), "varint"),
    **dict.fromkeys((17, 18), "zigzag"),
    **dict.fromkeys((9, 12), "bytes"),
    11: "message",
    10: "group",
    1: "double",
    2: "float",
    **dict.fromkeys((6, 16), "fixed64"),
    **dict.fromkeys((7, 15), "fixed32"),
}
"""Types of fields (descriptor.proto) that are read alike."""


def protobuf_problems(reader: Any, writer: Any) -> Iterator[str]:
    """Of `FileDescriptorProto`s: the same number must be read alike, what is required be there."""
    yield from _messages(reader.message_type, writer.message_type, "", first=True)


def _messages(
    reader: Sequence[Any], writer: Sequence[Any], path: str, *, first: bool = False
) -> Iterator[str]:
    if first and reader[0].name != writer[0].name:
        yield f"the first message is {reader[0].name}, it was {writer[0].name}"
    new = {each.name: each for each in reader}
    for old in writer:
        if old.name in new:
            place = f"{path}{old.name}"
            yield from _fields(new[old.name], old, place)
            yield from _messages(new[old.name].nested_type, old.nested_type, f"{place}.")


def _fields(reader: Any, writer: Any, path: str) -> Iterator[str]:
    old = {each.number: each for each in writer.field}
    for field in reader.field:
        was = old.get(field.number)
        place = f"{path}.{field.name}"
        if was is None:
            if field.label == 2:
                yield f"{place}: is required, and new"
            continue
        if _WIRE.get(field.type) != _WIRE.get(was.type):
            yield f"{place}: number {field.number} has another type"
        elif (
            field.type == 11
            and field.type_name.rpartition(".")[2] != (was.type_name.rpartition(".")[2])
        ):
            yield f"{place}: is another message"
        if (field.label == 3) != (was.label == 3):
            yield f"{place}: is repeated now, or was"
