"""`lakemq plugin replay`: what a plugin's new version would make of recorded records."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

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
from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError, UnknownPartition
from lakemq.broker_core.api.hooks import ENTRY_POINT_GROUP
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.state.internal_topics import is_internal
from lakemq.broker_core.api.types import ANONYMOUS, Columns
from lakemq.cli.plugins.outcomes import (
    KINDS,
    Outcome,
    differing,
    kind_of,
    lines_of,
)
from lakemq.cli.plugins.version_process import Recorded, VersionProcess
from lakemq.cli.start import ConfigFile

if TYPE_CHECKING:
    # Not for other commands: the SDK takes its time to be imported.
    from lakemq.plugins.native.sdk import ConsumerRecord, SyncClient

GROUP_RECORDS: Final = 500
"""Records that interceptors are shown at a time."""
Versions = tuple[VersionProcess | Recorded, VersionProcess]


def _topics(context: typer.Context, incomplete: str) -> list[str]:
    from lakemq.plugins.native.cli.completion import topic_names

    return topic_names(context, incomplete)


class Difference(NamedTuple):
    """A record of which two versions do not make the same."""

    partition: int
    offset: int
    kind: str
    before: Outcome
    after: Outcome


class Range(NamedTuple):
    """Offsets of each partition that are read."""

    first: int | None = None
    """None: from the earliest, or from a time."""
    end: int | None = None
    """The first that is not read; None: none."""


@option_groups
def replay(
    name: Annotated[str, typer.Argument(help="As in its section: [plugins.NAME].")],
    topic: Annotated[
        str,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", help="Of the records.", autocompletion=_topics
        ),
    ],
    path: Annotated[
        Path | None,
        typer.Option("--path", metavar="FOLDER", help="Of the new version: project or site."),
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Not older: 15m, 2h, ISO 8601, or ms since 1970."),
    ] = None,
    offsets: Annotated[
        str | None,
        typer.Option(metavar="FIRST:END", help="Before END; either may be left out."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Default: all of them.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--max", "-n", min=1, help="Records; default: all of them.")
    ] = None,
    show: Annotated[int, typer.Option("--show", min=0, help="Differences.")] = 10,
    user: Annotated[
        str, typer.Option("--as", metavar="USER", help="Who has sent them.")
    ] = ANONYMOUS.name,
    config: ConfigFile = None,
    *,
    broker: BrokerOptions,
) -> None:
    """Show what a plugin's new version would make of recorded records, and write nothing.

    With --path: the installed version against the new one; the records as they are stored against
    the new one where none is installed. Without: the records as they are stored against the
    installed version. It ends with 0: no difference, 1: differences, 2: it could not compare.
    """
    try:
        span = _range(offsets)
        if is_internal(topic):
            raise InvalidRequest(f"topic {topic} is the broker's own: no interceptor sees it")
    except LakeMQError as error:
        fail(error, ExitCode.USAGE)
    since_ms = None if from_time is None else time_ms("--from-time", from_time)
    if since_ms is not None and span.first is not None:
        fail("--from-time and --offsets both say where to begin", ExitCode.USAGE)
    with _client(broker) as client:
        starts = _starts(client, topic, since_ms, span.first, partition)
        with _before(name, path, config) as before, VersionProcess(name, path, config) as after:
            _check_ready(name, before, after)
            records = islice(_records(client, topic, starts, span.end), count)
            compared = _compared((before, after), topic, user, records)
            counts, found = _counted(compared, show)
            _tell(before, after, counts, found)
    raise typer.Exit(ExitCode.DONE if counts["same"] == counts.total() else ExitCode.FAILED)


def _check_ready(name: str, before: VersionProcess | Recorded, after: VersionProcess) -> None:
    """Raises PluginError, InvalidRequest."""
    before.ready()
    after.ready()
    if before.file == after.file:
        raise InvalidRequest(
            f"the installed version of plugin {name} is {after.file}, too: there is nothing to "
            "compare"
        )


def _counted(
    compared: Iterator[Difference], show: int
) -> tuple[Counter[str], Sequence[Difference]]:
    """How many of each kind, and the first that are not the same."""
    counts: Counter[str] = Counter()
    found: list[Difference] = []
    for each in compared:
        counts[each.kind] += 1
        if each.kind != "same" and len(found) < show:
            found.append(each)
    return counts, found


def _range(text: str | None) -> Range:
    if text is None:
        return Range()
    first, colon, end = text.partition(":")
    if not colon or not all(
        each == "" or each.isascii() and each.isdecimal() for each in (first, end)
    ):
        raise InvalidRequest(f"--offsets {text!r}: it takes FIRST:END, like 100:200, 100: or :200")
    return Range(int(first) if first else None, int(end) if end else None)


# -- records


@contextmanager
def _client(broker: BrokerOptions) -> Iterator[SyncClient]:
    """Whatever fails ends the command as `diff` does: 1 is for differences alone."""
    from lakemq.plugins.native.cli.connection import Terminated, login_for, terminable, tls_of
    from lakemq.plugins.native.sdk import SyncClient

    try:
        tls, login = tls_of(broker), login_for(broker)
        with (
            terminable(),
            SyncClient(broker.bootstrap, timeout_s=10, tls=tls, login=login) as client,
        ):
            yield client
    except LakeMQError as error:
        fail(error, ExitCode.USAGE)
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None
    except Terminated:
        raise typer.Exit(128 + signal.SIGTERM) from None


def _starts(
    client: SyncClient, topic: str, since_ms: int | None, first: int | None, partition: int | None
) -> Mapping[int, int]:
    """Partition -> first offset."""
    described = client.describe_topic(topic).partitions
    starts = {each.partition: max(first or 0, each.log_start_offset) for each in described}
    if since_ms is not None:
        starts = dict(client.offsets_for_timestamp(topic, since_ms))
    if partition is None:
        return starts
    if partition not in starts:
        raise UnknownPartition(f"topic {topic} has no partition {partition}")
    return {partition: starts[partition]}


def _records(
    client: SyncClient, topic: str, starts: Mapping[int, int], end: int | None
) -> Iterator[ConsumerRecord]:
    """Partition after partition, so that two runs show the same."""
    for number, first in sorted(starts.items()):
        for record in client.consume_from(topic, {number: first}):
            if end is not None and record.offset >= end:
                break
            yield record


def _compared(
    versions: Versions, topic: str, user: str, records: Iterator[ConsumerRecord]
) -> Iterator[Difference]:
    while group := list(islice(records, GROUP_RECORDS)):
        columns = _columns(group)
        first, last = group[0], group[-1]
        what = f"records {first.partition}@{first.offset} to {last.partition}@{last.offset}"
        for version in versions:
            version.ask(topic, user, columns)
        before, after = (version.outcomes(what) for version in versions)
        for record, old, new in zip(group, before, after, strict=True):
            yield Difference(record.partition, record.offset, kind_of(old, new), old, new)


def _columns(group: Sequence[ConsumerRecord]) -> Columns:
    return Columns(
        [each.value for each in group],
        [each.key for each in group],
        [encode_headers(each.headers) for each in group],
        [each.timestamp_ms for each in group],
    )


# -- versions


def _before(name: str, path: Path | None, config: Path | None) -> VersionProcess | Recorded:
    if path is None or not entry_points(group=ENTRY_POINT_GROUP, name=name):
        return Recorded()
    return VersionProcess(name, None, config)


def _tell(
    before: VersionProcess | Recorded,
    after: VersionProcess,
    counts: Mapping[str, int],
    found: Sequence[Difference],
) -> None:
    numbers = {kind: counts.get(kind, 0) for kind in KINDS}
    total = sum(numbers.values())
    if is_json():
        print_json(
            {
                "before": before.version,
                "after": after.version,
                "records": total,
                **numbers,
                "seconds": {"before": before.seconds, "after": after.seconds},
                "differences": [_as_json(each) for each in found],
            }
        )
        return
    for each in found:
        typer.echo(f"{each.partition}@{each.offset} {each.kind}")
        for line in lines_of(each.before, each.after):
            typer.echo(line)
    if len(found) < total - numbers["same"]:
        typer.echo(f"... {total - numbers['same'] - len(found):,} more differences")
    told = ", ".join(f"{number:,} {kind}" for kind, number in numbers.items())
    typer.echo(f"{before.version} -> {after.version}: {total:,} records: {told}")
    typer.echo(f"in interceptors: {before.seconds:.3f} s -> {after.seconds:.3f} s")


def _as_json(each: Difference) -> dict[str, object]:
    before, after = differing(each.before, each.after)
    return {
        "partition": each.partition, "offset": each.offset, "kind": each.kind,
        "before": before, "after": after,
    }  # fmt: skip
