"""Goal: `lakemq proto` writes the whole public protocol, which a compiler takes as it is."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc
from typer.testing import CliRunner, Result

from lakemq.cli import commands as cli
from tests.unit.native.test_protocol_numbers import PAGES

PACKAGE = Path("lakemq/native/v1")


def lakemq(*words: str) -> Result:
    cli.add_plugin_commands()
    return CliRunner().invoke(cli.app, words)


def test_its_files_compile_to_the_protocol_that_the_broker_speaks(tmp_path: Path) -> None:
    assert lakemq("proto", str(tmp_path)).exit_code == 0
    files = sorted((tmp_path / PACKAGE).iterdir())
    compiled = tmp_path / "set"
    words = [f"-I{tmp_path}", f"--descriptor_set_out={compiled}", *map(str, files)]
    assert protoc.main(["protoc", *words]) == 0
    told = FileDescriptorSet.FromString(compiled.read_bytes())
    spoken = {}
    for proto in PAGES:
        file = FileDescriptorProto()
        proto.CopyToProto(file)
        file.name = str(PACKAGE / Path(file.name).name)
        file.dependency[:] = [str(PACKAGE / Path(each).name) for each in file.dependency]
        spoken[file.name] = file
    assert {each.name: _plain(each) for each in told.file} == spoken
    for each in files:
        assert each.read_text().startswith(f"// From LakeMQ {metadata.version('lakemq')}: ")


def _plain(file: FileDescriptorProto) -> FileDescriptorProto:
    """Without names in JSON, which a compiler adds and follow from the fields' own."""
    for message in file.message_type:
        for each in (message, *message.nested_type):
            for field in each.field:
                field.ClearField("json_name")
    return file


@pytest.mark.parametrize("proto", PAGES, ids=lambda proto: Path(proto.name).name)
def test_generated_code_keeps_its_names(proto: FileDescriptor) -> None:
    options = proto.GetOptions()
    assert options.go_package == "lakemq/native/v1;lakemqv1"
    assert (options.java_package, options.java_multiple_files) == ("lakemq.v1", True)


def test_a_folder_that_takes_no_files_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lakemq").write_text("a file")
    said = lakemq("proto", str(tmp_path))
    assert said.exit_code == 1
    assert said.stderr.endswith("Not a directory\n") and said.stderr.count("\n") == 1
