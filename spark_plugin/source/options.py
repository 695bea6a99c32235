"""Options of the Spark source, named as Spark's Kafka connector names them.

Every option is declared once, in `_OPTIONS`; an unknown one is an error that names the nearest.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from lakemq.spark_plugin.access import (
    ACCESS_OPTIONS,
    BOOTSTRAP_OPTIONS,
    Access,
    bootstrap_of,
    parse_access,
)
from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.source.offsets import parse_assignment, parse_offsets, parse_timestamps
from lakemq.spark_plugin.tiered_options import TIERED_OPTIONS, is_store_option, parse_tiered

COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""Columns of the source, in their order; `headers` only with `includeHeaders` or `columns`."""

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_MIN_S: Final = 0.001
_UNITS_BYTES: Final = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}

_OPTIONS: Final = (
    *BOOTSTRAP_OPTIONS, "subscribe", "subscribePattern", "assign",
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger",
    "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "columns",
    "pushdown", "batchRows", "fetchBytes", "retryTimeout", *ACCESS_OPTIONS,
    *TIERED_OPTIONS,
)  # fmt: skip


@dataclass(frozen=True)
class Boundary:
    """Where reading starts or ends: exactly one of the three is set, or none for the default."""

    everywhere: str | None = None
    """`earliest` or `latest`."""
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Topic -> partition -> offset; -1 latest, -2 earliest."""
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Topic -> partition -> ms since the epoch."""

    @property
    def by_timestamp(self) -> bool:
        """Whether offsets must be looked up by time."""
        return self.timestamp_ms is not None or bool(self.timestamps_ms)


@dataclass(frozen=True)
class ReadOptions:
    """Options of the source, parsed."""

    bootstrap: str
    """`host:port` of a broker."""
    access: Access = Access()
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    assignment: Mapping[str, set[int]] = field(default_factory=dict)
    starting: Boundary = Boundary()
    ending: Boundary = Boundary()
    latest_when_no_timestamp: bool = False
    """What a starting timestamp after the newest record means: the end, or an error."""
    trigger_rows_max: int | None = None
    trigger_rows_min: int | None = None
    trigger_delay_max_s: float = 900.0
    trigger_max_bytes: int | None = None
    partitions_min: int | None = None
    """Spark partitions to split into at least (more than topic partitions)."""
    partition_rows_max: int | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = COLUMNS[:-1]
    pushdown: bool = False
    """Take Spark's filters, so that less is read; batch only."""
    batch_rows: int = 16_384
    """Rows of an Arrow batch, about."""
    fetch_bytes: int = 4 << 20
    """Size of one answer of the broker, about."""
    retry_timeout_s: float = 60.0
    """How long an executor tries to reach a broker that went away."""


def nearest(name: str, known: tuple[str, ...]) -> str:
    """`; did you mean X?` for the known name that looks most like `name`, or nothing."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_lower, 1, 0.5)
    return f"; did you mean {by_lower[found[0]]}?" if found else ""


def parse_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Spark's option map (names in any case) -> ReadOptions. OptionError or OffsetsError."""
    given = _Given(options)
    sources = [name for name in ("subscribe", "subscribePattern", "assign") if given.has(name)]
    if len(sources) != 1:
        raise OptionError(
            "give exactly one of subscribe, subscribePattern and assign"
            + (f", not {' and '.join(sources)}" if sources else "")
        )
    result = ReadOptions(
        bootstrap=given.bootstrap(),
        access=given.access(),
        topics=given.names("subscribe"),
        topic_pattern=given.pattern("subscribePattern"),
        assignment=parse_assignment(given.text("assign")) if given.has("assign") else {},
        starting=given.boundary("starting"),
        ending=given.boundary("ending"),
        latest_when_no_timestamp=given.choice(
            "startingOffsetsByTimestampStrategy", ("error", "latest")
        )
        == "latest",
        trigger_rows_max=given.count("maxOffsetsPerTrigger"),
        trigger_rows_min=given.count("minOffsetsPerTrigger"),
        trigger_delay_max_s=given.duration_s("maxTriggerDelay", 900.0),
        trigger_max_bytes=given.size("maxBytesPerTrigger"),
        partitions_min=given.count("minPartitions"),
        partition_rows_max=given.count("maxRecordsPerPartition"),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        columns=given.columns(),
        pushdown=given.flag("pushdown", False),
        batch_rows=given.count("batchRows") or 16_384,
        fetch_bytes=given.size("fetchBytes") or 4 << 20,
        retry_timeout_s=given.duration_s("retryTimeout", 60.0),
    )
    _check_mode(result, streaming)
    return result


def _check_mode(options: ReadOptions, streaming: bool) -> None:
    if streaming:
        if options.ending != Boundary():
            raise OptionError("a streaming query has no end: leave the ending... options away")
        low, high = options.trigger_rows_min, options.trigger_rows_max
        if low and high and low > high:
            raise OptionError(f"minOffsetsPerTrigger {low} is above maxOffsetsPerTrigger {high}")
        return
    if options.starting.everywhere == "latest":
        raise OptionError("startingOffsets latest leaves a batch query nothing to read")
    if options.ending.everywhere == "earliest":
        raise OptionError("endingOffsets earliest leaves a batch query nothing to read")


class _Given:
    """The options as given, by lower-case name, with one reader for each kind of value."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        known = {name.lower() for name in _OPTIONS}
        for name in options:
            if name.lower() not in known and not is_store_option(name):
                raise OptionError(f"unknown option {name}{nearest(name, _OPTIONS)}")

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def bootstrap(self) -> str:
        return bootstrap_of(self._values)

    def access(self) -> Access:
        return replace(parse_access(self._values), tiered=parse_tiered(self._values))

    def text(self, name: str, default: str = "") -> str:
        return str(self._values.get(name.lower(), default)).strip()

    def names(self, name: str) -> tuple[str, ...]:
        if not self.has(name):
            return ()
        found = tuple(dict.fromkeys(each.strip() for each in self.text(name).split(",")))
        if "" in found:
            raise OptionError(f"option {name}: an empty name in {self.text(name)!r}")
        return found

    def pattern(self, name: str) -> str | None:
        if not self.has(name):
            return None
        try:
            re.compile(self.text(name))
        except re.error as error:
            raise OptionError(f"option {name}: no regular expression: {error}") from None
        return self.text(name)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.text(name, choices[0]).lower()
        if value not in choices:
            raise OptionError(f"option {name} is {value!r}; it takes {' or '.join(choices)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false") if default else ("false", "true")) == "true"

    def count(self, name: str) -> int | None:
        if not self.has(name):
            return None
        text = self.text(name)
        if not text.isdecimal() or not int(text):
            raise OptionError(f"option {name} is {text!r}; it takes a whole number above 0")
        return int(text)

    def size(self, name: str) -> int | None:
        return parse_size(f"option {name}", self.text(name)) if self.has(name) else None

    def duration_s(self, name: str, default: float) -> float:
        return parse_duration_s(f"option {name}", self.text(name)) if self.has(name) else default

    def columns(self) -> tuple[str, ...]:
        headers = self.flag("includeHeaders", False)
        if not self.has("columns"):
            return COLUMNS if headers else COLUMNS[:-1]
        chosen = self.names("columns")
        for name in chosen:
            if name not in COLUMNS:
                raise OptionError(f"option columns: no column {name}{nearest(name, COLUMNS)}")
        return chosen if not headers or "headers" in chosen else (*chosen, "headers")

    def boundary(self, side: str) -> Boundary:
        everywhere = f"{side}Offsets"
        single, each = f"{side}Timestamp", f"{side}OffsetsByTimestamp"
        given = [name for name in (everywhere, single, each) if self.has(name)]
        if len(given) > 1:
            raise OptionError(f"give one of {' and '.join(given)}, not both")
        if not given:
            return Boundary()
        if self.has(single):
            text = self.text(single)
            if not text.isdecimal():
                raise OptionError(f"option {single} is {text!r}; it takes ms since the epoch")
            return Boundary(timestamp_ms=int(text))
        if self.has(each):
            return Boundary(timestamps_ms=parse_timestamps(each, self.text(each)))
        text = self.text(everywhere)
        if text.lower() in ("earliest", "latest"):
            return Boundary(everywhere=text.lower())
        if not text.startswith("{"):
            raise OptionError(
                f"option {everywhere} is {text!r}; it takes earliest, latest or JSON offsets"
            )
        return Boundary(offsets=parse_offsets(everywhere, text))


def parse_duration_s(what: str, text: str) -> float:
    """`15m`, `30s`, `500ms` -> seconds. OptionError names `what`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", text.strip().lower())
    if not match:
        raise OptionError(f"{what} is {text!r}; it takes a duration such as 30s, 500ms or 15m")
    if float(match[1]) * _UNITS_S[match[2]] < _DURATION_MIN_S:
        raise OptionError(f"{what} is {text!r}; the least is 1ms")
    return float(match[1]) * _UNITS_S[match[2]]


def parse_size(what: str, text: str) -> int:
    """`128MB`, `1gb`, `4096` -> bytes (units of 1024). OptionError names `what`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?b?)", text.strip().lower())
    unit = match[2] if match else "?"
    unit = unit if unit in _UNITS_BYTES else f"{unit}b"
    if not match or unit not in _UNITS_BYTES or int(float(match[1]) * _UNITS_BYTES[unit]) < 1:
        raise OptionError(f"{what} is {text!r}; it takes a size such as 128MB or 1GB")
    return int(float(match[1]) * _UNITS_BYTES[unit])
