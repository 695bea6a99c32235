"""`lakemq journal verify|dump|stats`: look into a journal's folder, also while no node runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from lakemq.broker_core.api.command_line import (
    ExitCode,
    fail,
    is_json,
    option_groups,
    print_json,
    print_table,
    say,
)
from lakemq.broker_core.api.errors import ConfigError, CorruptBatch
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.plugins.journal.segment.damage import Damage
from lakemq.plugins.journal.segment.files import DiskFiles
from lakemq.plugins.journal.segment.manifest import BadManifest
from lakemq.plugins.journal.segment.walk import BatchAt
from lakemq.plugins.journal.tools.offline import (
    ERROR,
    OpenStore,
    PartitionCheck,
    PartitionReport,
    partition_folders,
    read_segments,
)
from lakemq.plugins.journal.tools.offline_stores import store_opener

journal_app = typer.Typer(
    no_args_is_help=True, help="Look into the journal's files; nothing is changed."
)

DataDir = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="A node's data folder, or the journal's in it.")
]
Topic = Annotated[str, typer.Option(help="Only this topic: its name or its id.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", envvar="LAKEMQ_CONFIG", metavar="FILE",
        help="The node's TOML file: its plugins.journal.tiering_options open the object store.",
    ),
]  # fmt: skip
Remote = Annotated[bool, typer.Option(help="Read objects of tiered segments too.")]


def _reports(
    data_dir: Path, topic: str, open_store: OpenStore | None = None
) -> Iterator[PartitionReport]:
    files = DiskFiles()
    try:
        folders = partition_folders(files, data_dir)
    except OSError as error:
        fail(error, ExitCode.USAGE)
    for folder in folders:
        check = PartitionCheck(files, folder, open_store)
        if topic in ("", check.topic, folder.parent.name):
            yield check.run()


@journal_app.command()
@option_groups
def verify(
    data_dir: DataDir,
    topic: Topic = "",
    config: ConfigFile = None,
    remote: Remote = True,
) -> None:
    """Read every byte and check every CRC, offset, index and manifest, and the objects of segments
    that are tiered.

    Ends with 1 if records are lost, damaged or can't be reached, with 0 if not; warnings are what a
    start puts right.
    """
    try:
        open_store = store_opener(DiskFiles(), config) if remote else None
    except ConfigError as error:
        fail(error, ExitCode.USAGE)
    partitions = records = errors = warnings = 0
    for report in _reports(data_dir, topic, open_store):
        partitions += 1
        records += report.records
        for finding in report.findings:
            errors += finding.severity == ERROR
            warnings += finding.severity != ERROR
            said = f"{finding.severity}: {finding.partition}: {finding.message}"
            say(said, **vars(finding))
    summary = {
        "partitions": partitions, "records": records, "errors": errors, "warnings": warnings,
    }  # fmt: skip
    say(", ".join(f"{count} {name}" for name, count in summary.items()), **summary)
    raise typer.Exit(ExitCode.FAILED if errors else ExitCode.DONE)


@journal_app.command()
@option_groups
def stats(data_dir: DataDir, topic: Topic = "") -> None:
    """Offsets, sizes, times, codecs and producers of every partition."""
    rows = [_statistics(report) for report in _reports(data_dir, topic)]
    if is_json():
        for row in rows:
            print_json(row)
        return
    cells = [[row[key] for key in _SHOWN] for row in rows]
    print_table([name.replace("_", " ") for name in _SHOWN], cells)


_SHOWN = (
    "topic", "partition", "start_offset", "end_offset", "records", "segments", "bytes",
    "compression_ratio", "newest", "findings",
)  # fmt: skip
"""Columns of the table; `--output json` prints all fields."""


def _statistics(report: PartitionReport) -> dict[str, str | int | float | None]:
    manifest = report.manifest
    return {
        "topic": manifest.topic if manifest else "",
        "topic_id": report.path.parent.name,
        "partition": int(report.path.name),
        "start_offset": manifest.log_start_offset if manifest else None,
        "end_offset": report.end_offset,
        "records": report.records,
        "batches": report.batches,
        "segments": len(manifest.segments) if manifest else 0,
        "bytes": report.bytes,
        "compression_ratio": round(report.raw_bytes / report.bytes, 2) if report.bytes else None,
        "codecs": "+".join(sorted(report.codecs)),
        "producers": len(report.producers),
        "oldest": _time(report.min_timestamp_ms),
        "newest": _time(report.max_timestamp_ms),
        "findings": len(report.findings),
    }


def _time(timestamp_ms: int | None) -> str | None:
    if timestamp_ms is None:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


@journal_app.command()
@option_groups
def dump(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A segment file or a partition's folder.")
    ],
    offset: Annotated[int, typer.Option(help="Begin with the batch that holds it.")] = 0,
    count: Annotated[int, typer.Option(help="So many batches at most.")] = 1000,
    records: Annotated[bool, typer.Option(help="Show every record, not only batches.")] = False,
) -> None:
    """Print batches, or records, as one JSON object a line; damage where it lies."""
    try:
        for found in islice(read_segments(DiskFiles(), path, offset), count):
            if isinstance(found, Damage):
                typer.echo(json.dumps({"damage": found._asdict()}))
            elif records:
                for line in _records(found):
                    typer.echo(line)
            else:
                fields = {"position": found.position, **found.header._asdict()}
                fields["codec"] = found.header.compression.name.lower()
                typer.echo(json.dumps(fields))
    except (OSError, BadManifest) as error:
        fail(f"{path}: {error}", ExitCode.USAGE)


def _records(batch: BatchAt) -> Iterator[str]:
    try:
        found = RecordBatch(batch.data).records()
    except CorruptBatch as error:
        yield json.dumps({"offset": batch.header.base_offset, "unreadable": str(error)})
        return
    for record in found:
        fields: dict[str, object] = {
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": _text(record.key),
            "value": _text(record.value),
        }
        if record.headers:
            fields["headers"] = [[name, _text(value)] for name, value in record.headers]
        yield json.dumps(fields, ensure_ascii=False)


def _text(data: bytes | None) -> str | dict[str, str] | None:
    """UTF-8 as it is, other bytes as `{"hex": ...}`."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}
