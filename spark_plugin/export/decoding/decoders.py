"""Format -> the decoder of its values."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final, Literal, get_args

from lakemq.spark_plugin.export.decoding.column_types import Evolve, parse_schema
from lakemq.spark_plugin.export.decoding.decoder import Decoder

if TYPE_CHECKING:
    from lakemq.spark_plugin.export.decoding.sparkplug_values import FindBirths

RecordFormat = Literal["raw", "json", "csv", "avro", "protobuf", "sparkplug"]
FORMATS: Final = get_args(RecordFormat)
EXPLODING: Final = ("sparkplug",)
"""Formats of which a record may make several rows."""


def open_decoder(
    format: RecordFormat,
    schema: str,
    *,
    message: str = "",
    delimiter: str = ",",
    evolve: Evolve = "strict",
    find_births: FindBirths | None = None,
) -> Decoder:
    """The decoder of a format that decodes. `find_births`: for Sparkplug B, as its decoder has it.
    OptionError if the schema is not valid for it."""
    if format == "json":
        from lakemq.spark_plugin.export.decoding.decode import JsonDecoder

        columns = parse_schema(schema) if schema else ()
        return JsonDecoder(columns, find_new=evolve != "strict", widen=evolve == "widen")
    if format == "csv":
        from lakemq.spark_plugin.export.decoding.csv_values import CsvDecoder

        return CsvDecoder(parse_schema(schema), delimiter=delimiter)
    if format == "avro":
        from lakemq.spark_plugin.export.decoding.avro_values import AvroDecoder

        return AvroDecoder(schema)
    if format == "protobuf":
        from lakemq.spark_plugin.export.decoding.protobuf_values import ProtobufDecoder

        return ProtobufDecoder(base64.b64decode(schema), message)
    if format == "sparkplug":
        from lakemq.spark_plugin.export.decoding.sparkplug_values import SparkplugDecoder

        return SparkplugDecoder(find_births)
    raise ValueError(f"records of format {format} are not decoded")
