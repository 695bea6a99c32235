"""`lakemq consume`: records of a topic, printed as one likes, alone or as a member of a group."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Final

import typer

from lakemq.broker_core.api.command_line import (
    BrokerOptions,
    ExitCode,
    fail,
    is_json,
    option_groups,
    time_ms,
    words,
)
from lakemq.broker_core.api.errors import LakeMQError, UnknownPartition
from lakemq.plugins.native.cli.completion import group_names, topic_names
from lakemq.plugins.native.cli.connection import client_of, terminable
from lakemq.plugins.native.cli.record_text import (
    TEMPLATE_HELP,
    Printed,
    as_json,
    as_value,
    headers_of,
    template,
)
from lakemq.plugins.native.sdk import (
    Condition,
    ConsumerOptions,
    ConsumerRecord,
    RecordFilter,
    SyncClient,
    SyncConsumer,
)
from lakemq.plugins.native.sdk.arguments import first_offset

_IDLE_S: Final = 0.5
"""A member looks whether it has read everything when nothing came for that long."""
_ASSIGNED_WITHIN_S: Final = 15.0
"""Longer than the session time-out, after which a member that died leaves its partitions."""
_COMMIT_INTERVAL_MS: Final = 1000
Start = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="earliest, latest or an offset.",
        autocompletion=words("earliest", "latest"),
    ),
]
FromTime = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Not older: 15m, 2h ago, ISO 8601, or ms since 1970."),
]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="Only with it; repeatable."),
]
Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="TEMPLATE",
        help=f"json, or text with {TEMPLATE_HELP}.",
        autocompletion=words("json"),
    ),
]

Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="NAME",
        help="Read as a member, commit.",
        autocompletion=group_names,
    ),
]


@option_groups
def consume(
    topic_name: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=topic_names)],
    start: Start = "earliest",
    from_time: FromTime = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Default: all of them.")
    ] = None,
    group: Group = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Only records with this key.")
    ] = None,
    header: Header = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    count: Annotated[
        int | None,
        typer.Option("--max", "--count", "-n", min=1, help="End after this many records."),
    ] = None,
    timestamp: Annotated[
        bool, typer.Option("--timestamp", help="Print a record's time (UTC) and a tab before it.")
    ] = False,
    form: Form = None,
    *,
    broker: BrokerOptions,
) -> None:
    """Print the values of a topic's records, or with --format or --json more of them.

    It ends at what was the end when it began, with --follow not before Ctrl-C. A member of a group
    goes on where the group has committed (--from says where a new group begins), and commits what
    it has printed, every second and at the end.
    """
    if group is not None and (partition is not None or from_time is not None):
        fail("a member of a group takes neither --partition nor --from-time", ExitCode.USAGE)
    try:
        printed = _printer(form, timestamp)
        wanted = _filter(key, header or ())
    except LakeMQError as error:
        fail(error, ExitCode.USAGE)
    since_ms = None if from_time is None else time_ms("--from-time", from_time)
    with client_of(broker) as client, terminable():
        if group is None:
            starts = _starts(client, topic_name, start, since_ms, partition)
            records = client.consume_from(topic_name, starts, follow=follow, wanted=wanted)
            _print(islice(records, count), printed, flush=follow)
            return
        client.describe_topic(topic_name)  # a member would wait for one that is not there
        options: ConsumerOptions = {
            "start": start,
            "auto_commit": True,
            "auto_commit_interval_ms": _COMMIT_INTERVAL_MS,
        }
        if wanted is not None:
            options["wanted"] = wanted
        with client.subscribe(topic_name, group=group, **options) as consumer:
            records = iter(consumer) if follow else _member_records(consumer, client, topic_name)
            # What is printed is flushed before the next record is asked for, and only what was
            # handled before that is committed: never a record that did not get out.
            _print(islice(records, count), printed, flush=True)


def _printer(form: str | None, timestamp: bool) -> Printed:
    if form == "json" or (form is None and is_json()):
        return as_json
    inner = as_value if form is None else template(form)
    if not timestamp:
        return inner
    time_of = template("%T\t")
    return lambda record: time_of(record) + inner(record)


def _filter(key: str | None, pairs: Sequence[str]) -> RecordFilter | None:
    conditions = [Condition(name, value) for name, value in headers_of(pairs)]
    if key is not None:
        conditions.append(Condition("", key.encode()))
    return RecordFilter(tuple(conditions)) if conditions else None


def _print(records: Iterator[ConsumerRecord], printed: Printed, *, flush: bool) -> None:
    out = sys.stdout.buffer
    for record in records:
        out.write(printed(record))
        if flush:
            out.flush()
    out.flush()


def _starts(
    client: SyncClient, topic: str, start: str, since_ms: int | None, partition: int | None
) -> Mapping[int, int]:
    if since_ms is not None:
        starts = client.offsets_for_timestamp(topic, since_ms)
    else:
        first = int(start) if start.isdecimal() else start
        starts = {
            each.partition: first_offset(first, each.log_start_offset, each.high_watermark)
            for each in client.describe_topic(topic).partitions
        }
    if partition is None:
        return starts
    if partition not in starts:
        raise UnknownPartition(f"topic {topic} has no partition {partition}")
    return {partition: starts[partition]}


def _member_records(
    consumer: SyncConsumer, client: SyncClient, topic: str
) -> Iterator[ConsumerRecord]:
    """Up to what was the end when there was nothing to do for a moment."""
    until = time.monotonic() + _ASSIGNED_WITHIN_S
    while True:
        yield from consumer.until_idle(_IDLE_S)
        positions = consumer.consumer.positions()
        if positions:
            ends = {
                each.partition: each.high_watermark
                for each in client.describe_topic(topic).partitions
            }
            if all(at >= ends.get(place.partition, 0) for place, at in positions.items()):
                return
        elif time.monotonic() >= until:
            return
