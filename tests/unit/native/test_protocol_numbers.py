"""Goal: version 1 of the protocol only ever grows, and its pages say what it is.

`native_v1.txt` lists every RPC, field and enum value with its number and type. A line is never
changed or removed; what is new is added by `python tests/unit/native/test_protocol_numbers.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor

from lakemq.broker_core.api.errors import BY_CODE
from lakemq.plugins.native.proto import (
    admin_pb2,
    metadata_pb2,
    native_pb2,
    queues_pb2,
    schedules_pb2,
    schemas_pb2,
    security_pb2,
    transactions_pb2,
)
from lakemq.plugins.native.server.convert import status_of

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).with_name("native_v1.txt")
PAGE = ROOT / "docs/formats/native.md"
PAGES: dict[FileDescriptor, Path] = {
    native_pb2.DESCRIPTOR: PAGE,
    admin_pb2.DESCRIPTOR: ROOT / "docs/formats/native-admin.md",
    security_pb2.DESCRIPTOR: ROOT / "docs/formats/native-security.md",
    transactions_pb2.DESCRIPTOR: ROOT / "docs/formats/native-transactions.md",
    schedules_pb2.DESCRIPTOR: ROOT / "docs/formats/native-schedules.md",
    queues_pb2.DESCRIPTOR: ROOT / "docs/formats/native-queues.md",
    metadata_pb2.DESCRIPTOR: ROOT / "docs/formats/native-metadata.md",
    schemas_pb2.DESCRIPTOR: ROOT / "docs/formats/native-schemas.md",
}
"""Every proto file of the package, and the page that describes it."""
PROTOS = pytest.mark.parametrize("proto", PAGES, ids=lambda proto: Path(proto.name).name)
NOT_ON_THE_WIRE = {
    "UNDECIDED", "CONFIG", "PLUGIN", "STARTUP", "TLS_FAILED",
    "CONFLICT", "UNKNOWN_ENTRY", "UNKNOWN_NODE",  # of the admin API alone
}  # fmt: skip
_SCALARS = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}


def type_of(field: FieldDescriptor) -> str:
    """As the page writes it: `repeated string`, `map of int32 to int64`, `Topic`."""
    kind = field.message_type or field.enum_type
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        return f"map of {type_of(key)} to {type_of(value)}"
    name = kind.name if kind is not None else _SCALARS[field.type]
    return f"repeated {name}" if field.is_repeated else name


def messages(proto: FileDescriptor) -> dict[str, list[tuple[int, str, str]]]:
    """Message name -> (number, field, type)."""
    return {
        name: [(each.number, each.name, type_of(each)) for each in message.fields]
        for name, message in proto.message_types_by_name.items()
    }


def enums(proto: FileDescriptor) -> dict[str, list[tuple[int, str]]]:
    return {
        name: [(each.number, each.name) for each in enum.values]
        for name, enum in proto.enum_types_by_name.items()
    }


def rpcs(proto: FileDescriptor) -> list[tuple[str, str, str]]:
    (service,) = proto.services_by_name.values()

    def side(name: str, streamed: bool) -> str:
        return f"stream of {name}" if streamed else name

    return [
        (
            each.name,
            side(each.input_type.name, each.client_streaming),
            side(each.output_type.name, each.server_streaming),
        )
        for each in service.methods
    ]


def lines() -> Iterator[str]:
    """One line for everything that has a number or a name on the wire."""
    yield f"package {native_pb2.DESCRIPTOR.package}"
    for proto in PAGES:
        (service,) = proto.services_by_name
        prefix = "" if service == "Native" else f"{service}."
        for rpc, request, answer in rpcs(proto):
            yield f"rpc {prefix}{rpc}({request}) returns ({answer})"
        for name, fields in messages(proto).items():
            yield f"message {name}"
            for number, field, kind in fields:
                yield f"field {name}.{field} = {number}: {kind}"
        for name, values in enums(proto).items():
            for number, value in values:
                yield f"enum {name}.{value} = {number}"


def test_nothing_that_was_ever_published_changes() -> None:
    gone = [line for line in GOLDEN.read_text().splitlines() if line not in set(lines())]
    assert gone == [], "these were published and are gone or changed"


def test_everything_new_is_written_down() -> None:
    written = set(GOLDEN.read_text().splitlines())
    assert [line for line in lines() if line not in written] == [], "run this file and commit"


def test_no_proto_file_is_left_out() -> None:
    files = {
        f"lakemq/plugins/native/proto/{each.name}"
        for each in (ROOT / "lakemq/plugins/native/proto").glob("*.proto")
    }
    assert files == {proto.name for proto in PAGES}


def sections(page: Path) -> dict[str, list[list[str]]]:
    """Heading -> table rows of the page, cells without backquotes."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in page.read_text().splitlines():
        if match := re.match(r"#+ (.*)", line):
            heading = match[1]
            found[heading] = []
        elif line.startswith("|") and not line.startswith("|---"):
            found[heading].append([cell.strip().strip("`") for cell in line.split("|")[1:-1]])
    return found


@PROTOS
def test_the_page_describes_every_message_and_enum(proto: FileDescriptor) -> None:
    page = sections(PAGES[proto])
    for name, fields in messages(proto).items():
        rows = [(row[0], row[1], row[2]) for row in page[name][1:]]
        assert rows == [(str(number), field, kind) for number, field, kind in fields], name
    for name, values in enums(proto).items():
        assert [(row[0], row[1]) for row in page[name][1:]] == [
            (str(number), value) for number, value in values
        ], name


@PROTOS
def test_the_page_describes_every_call(proto: FileDescriptor) -> None:
    rows = sections(PAGES[proto])["Calls"][1:]
    assert [tuple(cell.replace("`", "") for cell in row[:3]) for row in rows] == rpcs(proto)


def test_the_page_describes_every_error() -> None:
    rows = {row[0]: (row[1], row[2]) for row in sections(PAGE)["Errors"][1:]}
    assert rows == {
        code: (status_of(error("")).name, "yes" if error.retriable else "no")
        for code, error in BY_CODE.items()
        if code not in NOT_ON_THE_WIRE
    }


if __name__ == "__main__":
    known = GOLDEN.read_text().splitlines() if GOLDEN.exists() else []
    GOLDEN.write_text("\n".join([*known, *(each for each in lines() if each not in known)]) + "\n")
