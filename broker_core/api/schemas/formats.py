"""JSON Schema, Avro and Protobuf behind one protocol; the extra `schemas` installs the libraries.

Protobuf sources are compiled by `protoc` in a process of its own, in a folder of its own.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from lakemq.broker_core.api.errors import InvalidRequest, SchemaMismatch
from lakemq.broker_core.api.schemas.avro_shape import AvroShape
from lakemq.broker_core.api.schemas.json_validation import (
    STEPS_MAX,
    JsonValidator,
    parsed_value,
    too_deep,
)
from lakemq.broker_core.api.schemas.types import SCHEMA_TYPES, TEXT_MAX_BYTES

_PROTOC_S: Final = 20
_AVRO_DEPTH_MAX: Final = 500
"""More levels than Python's default recursion limit lets anybody decode."""
_FILE: Final = "schema.proto"


class Format(Protocol):
    """A parsed schema. Payloads are without their frame."""

    def check(self, payload: bytes, steps_max: int = STEPS_MAX) -> None:
        """Raises SchemaMismatch, naming the field; TooManySteps where work is not bounded by the
        payload's size alone."""

    def encode(self, value: Any) -> bytes:
        """Raises SchemaMismatch, naming the field."""

    def decode(self, payload: bytes) -> Any:
        """Raises SchemaMismatch."""


def open_schema(schema_type: str, text: str) -> Format:
    """Raises InvalidRequest: what is wrong with the schema, or which library is missing."""
    if schema_type not in SCHEMA_TYPES:
        raise InvalidRequest(f"schema_type is {schema_type!r}; it takes {', '.join(SCHEMA_TYPES)}")
    if len(text.encode()) > TEXT_MAX_BYTES:
        raise InvalidRequest(f"a schema takes {TEXT_MAX_BYTES} bytes")
    kinds: dict[str, type[JsonFormat | AvroFormat | ProtobufFormat]] = {
        "json-schema": JsonFormat,
        "avro": AvroFormat,
        "protobuf": ProtobufFormat,
    }
    try:
        return kinds[schema_type](text)
    except ImportError as error:
        # `lakemq-client` has this module and this extra, and no node.
        package = "lakemq" if find_spec("lakemq.runtime") else "lakemq-client"
        raise InvalidRequest(
            f"{schema_type} needs {error.name}: pip install '{package}[schemas]'"
        ) from None


class JsonFormat:
    """Values are what `json` makes of a text."""

    def __init__(self, text: str) -> None:
        self._validator = JsonValidator(text)
        self.schema = self._validator.schema

    def check(self, payload: bytes, steps_max: int = STEPS_MAX) -> None:
        """As `Format.check`."""
        self._validator.check(parsed_value(payload), steps_max)

    def encode(self, value: Any) -> bytes:
        """As `Format.encode`."""
        self._validator.check(value)
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise SchemaMismatch(f"$: {error}") from None

    def decode(self, payload: bytes) -> Any:
        """As `Format.decode`."""
        return parsed_value(payload)


class AvroFormat:
    """Values are what fastavro makes: dicts, lists, str, int, ..."""

    def __init__(self, text: str) -> None:
        self.text = text
        import fastavro
        from fastavro import _read_py, _validation_py, _write_py
        from fastavro.schema import SchemaParseException, UnknownType

        try:
            self.schema = fastavro.parse_schema(json.loads(text))
            shape = AvroShape(self.schema)
        except (
            ValueError,
            SchemaParseException,
            UnknownType,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            raise InvalidRequest(f"schema: not Avro: {type(error).__name__}: {error}") from None
        if shape.is_boundless:
            raise InvalidRequest(
                "schema: an array, or a record too often, holds values that take no bytes"
            )
        # The compiled reader recurses with the value and without a limit, until the process dies of
        # it; the one in Python raises RecursionError.
        self._is_recursive = shape.is_recursive
        compiled = not self._is_recursive
        self._reader = fastavro.schemaless_reader if compiled else _read_py.schemaless_reader
        self._writer = fastavro.schemaless_writer if compiled else _write_py.schemaless_writer
        self._validate = fastavro.validate if compiled else _validation_py.validate

    def check(self, payload: bytes, steps_max: int = STEPS_MAX) -> None:
        """As `Format.check`."""
        self.decode(payload)

    def encode(self, value: Any) -> bytes:
        """As `Format.encode`."""
        from fastavro.validation import ValidationError

        # Python 3.14 prints what is nested that deeply, so fastavro would, once for each level.
        if self._is_recursive and too_deep(value, _AVRO_DEPTH_MAX):
            raise SchemaMismatch(f"nested deeper than {_AVRO_DEPTH_MAX} levels")
        try:
            self._validate(value, self.schema, strict=True)
            out = io.BytesIO()
            self._writer(out, self.schema, value, strict_allow_default=True)
        except ValidationError as error:
            raise SchemaMismatch(str(error)[:300]) from None
        except Exception as error:  # a value that does not fit makes it raise anything
            raise SchemaMismatch(f"{type(error).__name__}: {error}") from None
        return out.getvalue()

    def decode(self, payload: bytes) -> Any:
        """As `Format.decode`."""
        data = io.BytesIO(payload)
        try:
            value = self._reader(data, self.schema, None)
        except Exception as error:  # invalid bytes make it raise anything
            raise SchemaMismatch(f"not Avro of this schema: {type(error).__name__}") from None
        # Avro does not mark its end: bytes behind the value are of another schema, or none.
        if data.tell() != len(payload):
            raise SchemaMismatch(f"{len(payload) - data.tell()} bytes after the value")
        return value


class ProtobufFormat:
    """Values are messages of the first message type of the file, or dicts in place of them."""

    def __init__(self, text: str) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        files = descriptor_pb2.FileDescriptorSet.FromString(_compiled(text))
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        self.file = files.file[-1]
        if not self.file.message_type:
            raise InvalidRequest("schema: the file has no message")
        found = pool.FindFileByName(_FILE)
        first = self.file.message_type[0].name
        self.message = message_factory.GetMessageClass(found.message_types_by_name[first])

    def check(self, payload: bytes, steps_max: int = STEPS_MAX) -> None:
        """As `Format.check`."""
        self.decode(payload)

    def encode(self, value: Any) -> bytes:
        """As `Format.encode`."""
        from google.protobuf import json_format

        try:
            message = value
            if isinstance(value, dict):
                message = json_format.ParseDict(value, self.message())
            elif value.DESCRIPTOR.full_name != self.message.DESCRIPTOR.full_name:
                raise SchemaMismatch(
                    f"a {value.DESCRIPTOR.full_name} is no {self.message.DESCRIPTOR.full_name}"
                )
            return b"\x00" + bytes(message.SerializeToString())
        except (json_format.ParseError, AttributeError, ValueError) as error:
            raise SchemaMismatch(str(error)[:300]) from None

    def decode(self, payload: bytes) -> Any:
        """As `Format.decode`."""
        from google.protobuf.message import DecodeError

        if payload[:1] != b"\x00":
            raise SchemaMismatch("message indexes: only the first message of the file is taken")
        try:
            return self.message.FromString(payload[1:])
        except DecodeError as error:
            raise SchemaMismatch(f"not a {self.message.DESCRIPTOR.full_name}: {error}") from None


def _compiled(text: str) -> bytes:
    """A FileDescriptorSet, imports first. Only Google's own files can be imported."""
    import grpc_tools

    own = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / _FILE).write_text(text)
        out = Path(folder) / "out"
        try:
            run = subprocess.run(
                [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{own}",
                 "--include_imports", f"--descriptor_set_out={out}", _FILE],
                capture_output=True, text=True, timeout=_PROTOC_S, check=False, cwd=folder,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise InvalidRequest(f"schema: protoc took more than {_PROTOC_S} s") from None
        if run.returncode:
            said = " ".join(run.stderr.replace(folder, "").split())
            raise InvalidRequest(f"schema: not Protobuf: {said[:500]}")
        return out.read_bytes()
