"""What `--schema` and `--infer` say of the columns -> the text that tasks decode by. Edge: files,
the broker.
"""

from __future__ import annotations

import base64
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from lakemq.plugins.native.sdk import SyncClient
from lakemq.spark_plugin.errors import MissingDependency, NoTable, OptionError
from lakemq.spark_plugin.export.decoding.arrow_types import type_of_arrow
from lakemq.spark_plugin.export.decoding.column_types import REST, Type
from lakemq.spark_plugin.export.decoding.csv_values import read_csv
from lakemq.spark_plugin.export.decoding.decoder import without_frames
from lakemq.spark_plugin.export.decoding.decoders import RecordFormat
from lakemq.spark_plugin.export.decoding.evolution import (
    columns_of_table,
    evolve,
    merge_found,
    schema_text,
    type_of_value,
)
from lakemq.spark_plugin.export.decoding.rest import NAMES_MAX, names_in, rest_texts
from lakemq.spark_plugin.export.tables.open_table import open_table
from lakemq.spark_plugin.export.tables.partitioning import parse_partition_by
from lakemq.spark_plugin.export.tables.target import Target
from lakemq.spark_plugin.source.broker_reader import read_arrow
from lakemq.spark_plugin.source.planning import OffsetRange

_log = logging.getLogger("lakemq.spark")
SAMPLE_RECORDS: Final = 1000
"""Records that `--infer` looks at, of each partition."""


def read_schema(format: RecordFormat, given: str) -> str:
    """`--schema` is a column list (JSON, CSV) or Avro schema, or names a file that holds it; for
    Protobuf a file of descriptors, or a .proto file, which is compiled."""
    if not given or format in ("raw", "sparkplug"):
        return given
    file = Path(given)
    try:
        is_file = file.is_file()
    except OSError:  # too long for a file name
        is_file = False
    if format == "protobuf":
        if not is_file:
            raise OptionError(f"--schema: there is no file {given}")
        data = _compiled(file) if file.suffix == ".proto" else file.read_bytes()
        return base64.b64encode(data).decode()
    try:
        return file.read_text() if is_file else given
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--schema: {given} can't be read: {error}") from None


def _compiled(file: Path) -> bytes:
    """A .proto file and its imports as a FileDescriptorSet."""
    try:
        from grpc_tools import protoc
    except ImportError:
        raise MissingDependency(
            "a .proto file needs grpcio-tools: pip install grpcio-tools, or give what "
            "`protoc --include_imports --descriptor_set_out` writes"
        ) from None
    import importlib.resources

    well_known = importlib.resources.files("grpc_tools") / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "set.desc"
        code = protoc.main(
            [
                "protoc",
                f"--proto_path={file.parent}",
                f"--proto_path={well_known}",
                "--include_imports",
                f"--descriptor_set_out={output}",
                str(file),
            ]
        )
        if code:
            raise OptionError(f"--schema: {file} does not compile; protoc says above why")
        return output.read_bytes()


def infer_schema(
    client: SyncClient,
    topic: str,
    format: RecordFormat,
    delimiter: str,
    target: Target,
    partition_by: str,
    sql: bool,
) -> str:
    """The columns of a table that is there; else those that the topic's first records have."""
    if format not in ("json", "csv"):
        raise OptionError(f"--infer is for --format json and csv, not {format}")
    if not sql:
        try:
            schema = open_table(target, None).arrow_schema()
            transforms = [
                each for each in parse_partition_by(partition_by) if each.transform != "identity"
            ]
            return schema_text(columns_of_table(schema, (), [each.name for each in transforms]))
        except NoTable:
            pass
    values = list(_sample(client, topic, framed=format == "json"))
    columns = _json_columns(values) if format == "json" else _csv_columns(values, delimiter)
    if not columns:
        raise OptionError(f"--infer: the first records of topic {topic} tell no column")
    return schema_text(columns.items())


def _sample(client: SyncClient, topic: str, *, framed: bool) -> Iterator[bytes]:
    """Values of the first records of every partition, without the frame of a schema registry."""
    described = client.describe_topic(topic)
    for each in described.partitions:
        end = min(each.high_watermark, each.log_start_offset + SAMPLE_RECORDS)
        if each.log_start_offset < end:
            wanted = OffsetRange(
                topic, described.topic_id, each.partition, each.log_start_offset, end
            )
            for batch in read_arrow(client, wanted, columns=("value",)):
                values = without_frames(batch.column(0)) if framed else batch.column(0)
                yield from (value for value in values.to_pylist() if value is not None)


def _json_columns(values: list[bytes]) -> dict[str, Type]:
    found: dict[str, Type] = {}
    for value in values:
        try:
            kind = type_of_value(json.loads(value))
        except (ValueError, RecursionError):
            continue
        if kind is not None and kind.name == "struct":
            found = merge_found(found, dict(kind.fields))
    columns = dict(evolve((), found))
    _log_rest(columns, values)
    return columns


def _log_rest(columns: Mapping[str, Type], values: list[bytes]) -> None:
    """Log fields that can't be columns."""
    texts = rest_texts(columns.items(), (each.decode(errors="replace") for each in values))
    names = dict.fromkeys(
        name for text in texts if text and _is_object(text) for name in names_in(json.loads(text))
    )
    if names:
        _log.warning(
            "--infer: fields that can't be columns: %s; --evolve add keeps them in column %s",
            ", ".join(map(repr, [*names][:NAMES_MAX])),
            REST,
        )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _csv_columns(values: list[bytes], delimiter: str) -> dict[str, Type]:
    """Columns `_c0`, `_c1`, ... with types that all sampled lines of the usual length fit."""
    import pyarrow as pa

    lines = [each.decode(errors="replace").rstrip("\r\n") for each in values]
    lines = [each for each in lines if each and "\n" not in each and each.count('"') % 2 == 0]
    counts = [each.count(delimiter) for each in lines]
    if not lines:
        return {}
    usual = max(set(counts), key=counts.count)
    kept = [line for line, count in zip(lines, counts, strict=True) if count == usual]
    try:
        table = read_csv(pa.array(kept, pa.string()), delimiter)
    except pa.ArrowInvalid as error:
        raise OptionError(f"--infer: the first records are no CSV: {error}") from None
    kinds = {field.name: type_of_arrow(field.type) for field in table.schema}
    return {name: kind or Type("string") for name, kind in kinds.items()}
