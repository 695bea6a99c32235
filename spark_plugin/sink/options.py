"""Options of the Spark sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lakemq.spark_plugin.access import (
    ACCESS_OPTIONS,
    BOOTSTRAP_OPTIONS,
    Access,
    bootstrap_of,
    parse_access,
)
from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.source.options import nearest, parse_duration_s, parse_size

SINK_OPTIONS: Final = (
    *BOOTSTRAP_OPTIONS, "topic", "createTopic", "sinkId", "batchId", "compression", "batchBytes",
    "stagingTimeout", "retryTimeout", "includeHeaders", "checkpointLocation", "queryName",
    *ACCESS_OPTIONS,
)  # fmt: skip
COMPRESSIONS: Final = ("none", "lz4", "zstd")
_DIGITS_MAX: Final = 6
"""Of a number of partitions: far above what a broker allows, which says so itself."""
_BATCH_ID_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True)
class SinkOptions:
    """Options of the sink, parsed."""

    bootstrap: str
    access: Access = Access()
    topic: str = ""
    """Topic of all rows; empty: column `topic` says it."""
    create_partitions: int = 0
    """Partitions of the topic if it has to be created; 0: a missing topic is an error."""
    sink_id: str = ""
    batch_id: int | None = None
    """Number of a batch write: the same number of the same sink lands once."""
    checkpoint: str = ""
    compression: str = "none"
    batch_bytes: int = 1 << 20
    staging_timeout_ms: int = 0
    """How long staged records wait for their commit; 0: the broker's default."""
    retry_timeout_s: float = 60.0


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Spark's option map (names in any case) -> SinkOptions. OptionError."""
    given = {name.lower(): str(value).strip() for name, value in options.items()}
    known = {name.lower() for name in SINK_OPTIONS}
    for name in options:
        if name.lower() not in known:
            raise OptionError(f"unknown option {name}{nearest(name, SINK_OPTIONS)}")
    timeout, retry = given.get("stagingtimeout"), given.get("retrytimeout")
    size = given.get("batchbytes")
    return SinkOptions(
        bootstrap=bootstrap_of(given),
        access=parse_access(given),
        topic=given.get("topic", ""),
        create_partitions=_create_partitions(given),
        sink_id=_sink_id(given.get("sinkid", "")),
        batch_id=_batch_id(given, streaming),
        checkpoint=given.get("checkpointlocation", ""),
        compression=_compression(given.get("compression", "none")),
        batch_bytes=parse_size("option batchBytes", size) if size else 1 << 20,
        staging_timeout_ms=(
            int(1000 * parse_duration_s("option stagingTimeout", timeout)) if timeout else 0
        ),
        retry_timeout_s=parse_duration_s("option retryTimeout", retry) if retry else 60.0,
    )


def _create_partitions(given: Mapping[str, str]) -> int:
    text = given.get("createtopic", "")
    if not text:
        return 0
    if not given.get("topic"):
        raise OptionError("option createTopic needs option topic")
    if not text.isdecimal() or len(text) > _DIGITS_MAX or not int(text):
        raise OptionError(f"option createTopic is {text!r}; it takes a number of partitions")
    return int(text)


def _sink_id(text: str) -> str:
    if len(text.encode()) > 200 or not text.isprintable():
        raise OptionError("option sinkId takes up to 200 printable bytes")
    return text


def _batch_id(given: Mapping[str, str], streaming: bool) -> int | None:
    text = given.get("batchid", "")
    if not text:
        return None
    if streaming:
        raise OptionError("option batchId is for batch writes: a stream numbers its own batches")
    if not given.get("sinkid"):
        raise OptionError("option batchId needs sinkId: numbers are of one sink")
    if not text.isdecimal() or int(text) > _BATCH_ID_MAX:
        raise OptionError(f"option batchId is {text!r}; it takes a whole number")
    return int(text)


def _compression(text: str) -> str:
    if text.lower() not in COMPRESSIONS:
        raise OptionError(f"option compression is {text!r}; it takes {', '.join(COMPRESSIONS)}")
    return text.lower()
