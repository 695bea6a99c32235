"""`lakemq produce`: records from an option, a file, a pipe or a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Final

import typer

from lakemq.broker_core.api.command_line import (
    BrokerOptions,
    ExitCode,
    fail,
    is_json,
    option_groups,
    print_json,
    time_ms,
)
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.records.batch import BODY_MAX_BYTES
from lakemq.plugins.native.cli.completion import topic_names
from lakemq.plugins.native.cli.connection import client_of
from lakemq.plugins.native.cli.line_reader import LineReader
from lakemq.plugins.native.cli.record_text import headers_of, record_of_json
from lakemq.plugins.native.sdk import NewRecord


class CompressionName(StrEnum):
    """Codecs that `produce` takes."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class AcksName(StrEnum):
    """Acknowledgements that `produce` takes."""

    MEMORY = "memory"
    LEADER = "leader"
    REPLICATED = "replicated"


class InputFormat(StrEnum):
    """What `produce` makes of its input."""

    LINES = "lines"
    JSON = "json"
    RAW = "raw"


_FORMAT: Final = (
    "lines: a record a line; json: objects with value, key, headers, timestamp_ms, one a line; "
    "raw: all of it is one value."
)
Header = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="Of every record; repeatable."),
]
Timestamp = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="15m, 2h ago, ISO 8601, or ms since 1970; else now."),
]
Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="Default: as the keys say.")
]


@option_groups
def produce(
    topic_name: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=topic_names)],
    value: Annotated[
        str | None, typer.Option("--value", "-v", help="One record, then end.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Read this in place of standard input.", dir_okay=False),
    ] = None,
    form: Annotated[InputFormat, typer.Option("--format", help=_FORMAT)] = InputFormat.LINES,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A line is KEY, this text, VALUE.")
    ] = None,
    header: Header = None,
    timestamp: Timestamp = None,
    partition: Partition = None,
    acks: Annotated[AcksName, typer.Option(help="How durable before it counts.")] = AcksName.LEADER,
    compression: Annotated[CompressionName, typer.Option()] = CompressionName.NONE,
    *,
    broker: BrokerOptions,
) -> None:
    """Produce one record, or those of a file or of standard input.

    Lines are sent within 100 ms of being read. Ctrl-C or SIGTERM end it when those that were read
    are stored; how many are is told in any case.
    """
    if value is not None and file is not None:
        fail("--value and --file exclude each other", ExitCode.USAGE)
    try:
        usual = NewRecord(
            None,
            None if key is None else key.encode(),
            headers_of(header or ()),
            None if timestamp is None else time_ms("--timestamp", timestamp),
        )
    except LakeMQError as error:
        fail(error, ExitCode.USAGE)
    made = _maker(form, usual, key_separator)
    sent, done = 0, False
    with ExitStack() as opened:
        reader = LineReader(_source(file, opened))
        try:
            with client_of(broker) as client, reader:
                for values in _values(reader, value, form):
                    records = [made(each, number) for number, each in enumerate(values, sent + 1)]
                    client.send_batch(
                        topic_name,
                        records,
                        partition=partition,
                        acks=acks.value,
                        compression=compression.value,
                    )
                    sent += len(values)
            done = True
        finally:
            if sent or done:
                if is_json():
                    print_json({"stored": sent, "acks": acks.value})
                else:
                    typer.echo(f"{sent:,} record(s) stored, acks={acks.value}", err=True)
    if reader.unfinished:
        typer.echo("a line without an end was left out", err=True)
    if reader.signal is not None:
        raise typer.Exit(128 + reader.signal)


def _source(file: Path | None, opened: ExitStack) -> IO[bytes]:
    if file is None:
        return sys.stdin.buffer
    try:
        return opened.enter_context(file.open("rb"))
    except OSError as error:
        fail(f"--file {file}: {error.strerror}", ExitCode.USAGE)


def _values(reader: LineReader, value: str | None, form: InputFormat) -> Iterator[list[bytes]]:
    if value is not None:
        yield [value.encode()]
    elif form is InputFormat.RAW:
        whole = reader.rest(BODY_MAX_BYTES)
        if whole is None:
            fail(f"the input is longer than the {BODY_MAX_BYTES:,} bytes of a record")
        if reader.signal is None:
            yield [whole]
    else:
        yield from reader


def _maker(
    form: InputFormat, usual: NewRecord, separator: str | None
) -> Callable[[bytes, int], NewRecord]:
    """What makes a record of a value or a line, and of its number."""
    if separator is not None and form is not InputFormat.LINES:
        fail("--key-separator goes with --format lines", ExitCode.USAGE)
    if form is InputFormat.JSON:
        return lambda line, number: record_of_json(line, number, usual)
    if separator is None:
        return lambda line, _: usual._replace(value=line)
    between = separator.encode()

    def split(line: bytes, _: int) -> NewRecord:
        head, found, tail = line.partition(between)
        return usual._replace(value=tail, key=head) if found else usual._replace(value=line)

    return split
