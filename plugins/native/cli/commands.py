"""Sub-commands of `lakemq` that speak the native protocol: topic, produce, consume."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import Record
from lakemq.plugins.native.cli.line_reader import LineReader
from lakemq.plugins.native.sdk import NewRecord, SyncClient, Tls, TopicOffsets
from lakemq.plugins.native.sdk.net.login import Login, login_of

Bootstrap = Annotated[
    str,
    typer.Option(envvar="LAKEMQ_BOOTSTRAP", metavar="HOST:PORT", help="The broker's native port."),
]

topic = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter, delete topics.")


class OutputFormat(StrEnum):
    VALUE = "value"
    JSON = "json"


class CompressionName(StrEnum):
    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class AcksName(StrEnum):
    MEMORY = "memory"
    LEADER = "leader"
    REPLICATED = "replicated"


def fail(error: Exception | str) -> NoReturn:
    """One clear line, exit code 1."""
    typer.echo(f"lakemq: {error}", err=True)
    raise typer.Exit(1)


class Terminated(BaseException):
    """SIGTERM, where Ctrl-C would be a KeyboardInterrupt."""


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends what runs inside as Ctrl-C does, with exit code 143."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def client_of(bootstrap: str) -> Iterator[SyncClient]:
    """A client whose errors become one line. TLS and who one is come by environment variables."""
    try:
        login = _login(os.environ)
        with SyncClient(bootstrap, timeout_s=10, tls=_tls(os.environ), login=login) as client:
            yield client
    except LakeMQError as error:
        fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None
    except Terminated:
        raise typer.Exit(128 + signal.SIGTERM) from None


def _tls(environment: Mapping[str, str]) -> Tls | None:
    """LAKEMQ_TLS_CA, LAKEMQ_TLS_CERTIFICATE and LAKEMQ_TLS_KEY name PEM files."""
    ca, certificate, key = (
        environment.get(f"LAKEMQ_TLS_{name}") or None for name in ("CA", "CERTIFICATE", "KEY")
    )
    return Tls(ca, certificate, key) if ca or certificate or key else None


def _login(environment: Mapping[str, str]) -> Login | None:
    """LAKEMQ_TOKEN, or LAKEMQ_USERNAME, LAKEMQ_PASSWORD and LAKEMQ_MECHANISM."""
    token, username, password = (
        environment.get(f"LAKEMQ_{name}") or None for name in ("TOKEN", "USERNAME", "PASSWORD")
    )
    mechanism = environment.get("LAKEMQ_MECHANISM", "PLAIN")
    return login_of(token, username, password, mechanism)  # type: ignore[arg-type]  # it is checked


@topic.command("create")
def create_topic(
    name: str,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Default: the broker's.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="A topic setting; repeatable."),
    ] = None,
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """Create a topic."""
    settings = dict(each.partition("=")[::2] for each in config or ())
    with client_of(bootstrap) as client:
        made = client.create_topic(name, partitions, settings)
    typer.echo(f"created {made.name} with {len(made.partitions)} partition(s), id {made.topic_id}")


@topic.command("list")
def list_topics(bootstrap: Bootstrap = "127.0.0.1:9700") -> None:
    """List all topics."""
    with client_of(bootstrap) as client:
        topics = client.topics()
    table = Table(box=None, pad_edge=False)
    for heading in ("topic", "partitions", "records", "bytes"):
        table.add_column(heading, justify="left" if heading == "topic" else "right")
    for each in topics:
        records = sum(one.high_watermark - one.log_start_offset for one in each.partitions)
        size = sum(one.size_bytes for one in each.partitions)
        table.add_row(each.name, str(len(each.partitions)), f"{records:,}", f"{size:,}")
    Console().print(table)


@topic.command("describe")
def describe_topic(name: str, bootstrap: Bootstrap = "127.0.0.1:9700") -> None:
    """Show a topic's partitions and settings."""
    with client_of(bootstrap) as client:
        found = client.describe_topic(name)
    console = Console()
    console.print(f"{found.name}  id {found.topic_id}")
    console.print(_partition_table(found))
    settings = "  ".join(f"{key}={value}" for key, value in sorted(found.config.items()))
    console.print(settings, soft_wrap=True, highlight=False)


def _partition_table(found: TopicOffsets) -> Table:
    table = Table(box=None, pad_edge=False)
    headings = ("partition", "state", "log start", "high watermark", "log end", "segments", "bytes")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "state" else "right")
    table.add_column("")
    for each in found.partitions:
        table.add_row(
            str(each.partition),
            each.state,
            f"{each.log_start_offset:,}",
            f"{each.high_watermark:,}",
            f"{each.log_end_offset:,}",
            str(each.segments),
            f"{each.size_bytes:,}",
            each.detail,
        )
    return table


@topic.command("delete")
def delete_topic(
    name: str,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """Delete a topic and everything in it."""
    if not yes:
        typer.confirm(f"Delete topic {name} and all its records?", abort=True)
    with client_of(bootstrap) as client:
        client.delete_topic(name)
    typer.echo(f"deleted {name}")


def produce(
    topic_name: Annotated[str, typer.Argument(metavar="TOPIC")],
    value: Annotated[
        str | None, typer.Option("--value", "-v", help="One record, then end.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A line is KEY, this text, VALUE.")
    ] = None,
    acks: Annotated[AcksName, typer.Option(help="How durable before it counts.")] = AcksName.LEADER,
    compression: Annotated[CompressionName, typer.Option()] = CompressionName.NONE,
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """Produce one record, or one per line of standard input.

    Lines are sent within 100 ms of being read. Ctrl-C or SIGTERM end it when those that were read
    are stored; how many are is told in any case.
    """
    default_key = key.encode() if key is not None else None
    sent, done = 0, False
    reader = LineReader(sys.stdin.buffer)
    try:
        with client_of(bootstrap) as client, reader:
            for lines in reader if value is None else [[value.encode()]]:
                records = [_new_record(line, default_key, key_separator) for line in lines]
                client.send_batch(
                    topic_name, records, acks=acks.value, compression=compression.value
                )
                sent += len(lines)
        done = True
    finally:
        if sent or done:
            typer.echo(f"{sent:,} record(s) stored, acks={acks.value}", err=True)
    if reader.unfinished:
        typer.echo("a line without an end was left out", err=True)
    if reader.signal is not None:
        raise typer.Exit(128 + reader.signal)


def _new_record(line: bytes, key: bytes | None, separator: str | None) -> NewRecord:
    if separator is None:
        return NewRecord(line, key)
    head, found, tail = line.partition(separator.encode())
    return NewRecord(tail, head) if found else NewRecord(line, key)


def consume(
    topic_name: Annotated[str, typer.Argument(metavar="TOPIC")],
    start: Annotated[
        str, typer.Option("--from", help="earliest, latest or an offset.")
    ] = "earliest",
    partition: Annotated[int | None, typer.Option("--partition", min=0)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many.")
    ] = None,
    output: Annotated[OutputFormat, typer.Option("--output", "-o")] = OutputFormat.VALUE,
    bootstrap: Bootstrap = "127.0.0.1:9700",
) -> None:
    """Print records of a topic."""
    first = int(start) if start.isdecimal() else start
    with client_of(bootstrap) as client, terminable():
        records = client.consume(topic_name, start=first, partition=partition, follow=follow)
        for record in islice(records, count):
            sys.stdout.buffer.write(_printed(record, output) + b"\n")
            if follow:
                sys.stdout.buffer.flush()
        sys.stdout.buffer.flush()


def _printed(record: Record, output: OutputFormat) -> bytes:
    if output is OutputFormat.VALUE:
        return record.value or b""
    return json.dumps(
        {
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[name, _text(value)] for name, value in record.headers],
        },
        ensure_ascii=False,
    ).encode()


def _text(data: bytes | None) -> str | None:
    """UTF-8 text; other bytes as \\xNN, so that nothing is lost."""
    return None if data is None else data.decode("utf-8", "backslashreplace")
