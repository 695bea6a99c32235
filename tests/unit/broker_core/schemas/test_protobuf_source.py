"""Goal: a descriptor becomes source that says the very same, or is refused."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.schemas.formats import ProtobufFormat
from lakemq.broker_core.api.schemas.protobuf_source import normal, parsed_descriptor, source_of

PROTO3 = """
syntax = "proto3";  // a comment
package farm.v1;
import "google/protobuf/timestamp.proto";
import public "google/protobuf/wrappers.proto";
option java_package = "org.\\"farm\\" \\303\\244";
option optimize_for = SPEED;
message Reading {
  option deprecated = true;
  enum Kind {
    option allow_alias = true;
    UNKNOWN = 0;
    WARM = 1;
    HOT = 1 [deprecated = true];
    COLD = -5;
    reserved 7 to 9, 100 to max;
    reserved "OLD";
  }
  message Inner { message Deep { bytes b = 1; } Deep deep = 1; }
  google.protobuf.Timestamp at = 1;
  map<string, Inner> by_name = 2;
  oneof what { double number = 3; string text = 4; Inner.Deep deep = 5; }
  optional int64 maybe_it = 6;
  repeated sint32 many = 7 [packed = false];
  map<int32, Kind> kinds = 8;
  string other = 9 [json_name = "elsewhere", deprecated = true];
  oneof second { bool yes = 10; bool no = 11; }
  bool last = 12;
  reserved 20, 30 to 40, 1000 to max;
  reserved "gone", "too";
}
enum Top { ZERO = 0; }
service Readings {
  rpc Get(Reading) returns (stream Reading) { option deprecated = true; }
  rpc Put(stream Reading) returns (Reading);
  rpc Swap(Reading) returns (Reading) {}
}
"""
PROTO2 = """
syntax = "proto2";
message Old {
  required string name = 1 [default = "a\\"b\\n\\303\\244"];
  optional bytes data = 2 [default = "\\001\\"x"];
  optional double ratio = 3 [default = -inf];
  optional bool on = 4 [default = true];
  optional Level level = 5 [default = HIGH];
  enum Level { LOW = 1; HIGH = 2; }
  extensions 100 to 199;
  extensions 500;
  map<string, bytes> files = 6;
  oneof one { int32 a = 7; }
}
"""


@pytest.mark.parametrize("text", [PROTO3, PROTO2], ids=["proto3", "proto2"])
def test_source_says_what_the_descriptor_says(text: str) -> None:
    file = ProtobufFormat(text).file
    again = ProtobufFormat(source_of(file)).file
    assert normal(again) == normal(file)
    # As generated code has it: without what follows from the rest.
    sent = FileDescriptorProto.FromString(normal(file))
    sent.name = "farm/reading.proto"
    assert normal(ProtobufFormat(source_of(sent)).file) == normal(file)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda file: setattr(file, "syntax", "editions"), "neither proto2 nor proto3"),
        (lambda file: file.extension.add(name="x"), "'extend' of Protobuf is not taken"),
        (lambda file: file.message_type[0].extension.add(name="x"), "'extend'"),
        (
            lambda file: setattr(
                file.message_type[0].field[0], "type", FieldDescriptorProto.TYPE_GROUP
            ),
            "field a is a group",
        ),
        (lambda file: setattr(file.message_type[0].field[0], "oneof_index", 5), "oneof"),
        (
            lambda file: file.message_type[0].field[0].options.edition_defaults.add(value="1"),
            "option edition_defaults",
        ),
    ],
    ids=["edition", "extend", "nested-extend", "group", "oneof", "option"],
)
def test_what_has_no_source_is_refused(change: object, why: str) -> None:
    file = FileDescriptorProto(syntax="proto3")
    field = file.message_type.add(name="A").field.add(name="a", number=1, label=1, type=5)
    assert field.name == "a" and "int32 a = 1;" in source_of(file)
    assert callable(change)
    change(file)
    with pytest.raises(InvalidRequest, match=why):
        source_of(file)


def test_options_of_other_files_are_seen_as_lost() -> None:
    file = ProtobufFormat('syntax = "proto3"; message A { int32 a = 1; }').file
    # Extension 50000 of FieldOptions, as a file with one of its own would have it.
    file.message_type[0].field[0].options.MergeFromString(b"\x82\xb5\x18\x01x")
    assert normal(ProtobufFormat(source_of(file)).file) != normal(file)


def test_bytes_that_are_no_descriptor_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="neither Protobuf source nor"):
        parsed_descriptor(b"\xff\xff")
    with pytest.raises(InvalidRequest, match="can't be written"):
        source_of(parsed_descriptor(b"\x1a\x01\xff"))  # imports a name that is not UTF-8
