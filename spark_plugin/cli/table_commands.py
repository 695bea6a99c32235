"""Commands on tables that exports wrote: audit, vacuum, replay of dead letters. Only a replay
through a query needs Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakemq.broker_core.api.command_line import (
    BrokerOptions,
    ExitCode,
    is_json,
    option_groups,
    print_json,
    say,
    words,
)
from lakemq.spark_plugin.cli.broker_access import access_of
from lakemq.spark_plugin.cli.options import (
    ExportIdOptions,
    Format,
    RecordOptions,
    TableOptions,
    Topic,
    choice,
    export_settings,
    record_format,
    required,
    user_errors,
)
from lakemq.spark_plugin.source.options import parse_duration_s

if TYPE_CHECKING:
    from lakemq.spark_plugin.export.decoding.column_types import Evolve
    from lakemq.spark_plugin.export.job.settings import ExportSettings
    from lakemq.spark_plugin.export.maintenance.replay import Replayed


ReplayEvolve = Annotated[
    str,
    typer.Option(
        help="Fields without a column: strict ignores them; add makes columns (json); widen also "
        "makes types wider.",
        autocompletion=words("strict", "add", "widen"),
    ),
]


@option_groups
def audit_table(
    topic: Topic = "",
    keys: Annotated[bool, typer.Option("--keys", help="Compare counts of every key too.")] = False,
    *,
    table: TableOptions,
    ids: ExportIdOptions,
    broker: BrokerOptions,
) -> None:
    """Compare journal and table offset by offset. Exit code 1 if a record is missing or there
    twice."""
    with user_errors():
        from lakemq.spark_plugin.export.job.run import audit_target
        from lakemq.spark_plugin.export.maintenance.audit import all_complete

        target = table.target()
        topic = required("--topic", topic)
        found = audit_target(
            broker.bootstrap,
            topic,
            target,
            ids.export_id or topic,
            ids.dlq,
            by_key=keys,
            access=access_of(broker),
        )
    complete = all_complete(found)
    if is_json():
        print_json({"topic": topic, "complete": complete, "partitions": found})
    else:
        typer.echo("\n".join(each.sentence(topic) for each in found))
    if not complete:
        raise typer.Exit(ExitCode.FAILED)


@option_groups
def vacuum_table(
    retention: Annotated[
        str,
        typer.Option(
            help="Younger files stay: running commits and readers need them. At least 1ms."
        ),
    ] = "7d",
    *,
    table: TableOptions,
) -> None:
    """Expire old snapshots of a table, and delete data files that no snapshot refers to."""
    with user_errors():
        from lakemq.spark_plugin.export.job.run import all_targets
        from lakemq.spark_plugin.export.maintenance.vacuum import vacuum
        from lakemq.spark_plugin.export.tables.open_table import open_table

        target = table.target()
        retention_s = parse_duration_s("--retention", retention)
        done = [vacuum(open_table(each, None), retention_s) for each in all_targets(target)]
    expired, deleted = sum(each.expired for each in done), sum(each.deleted for each in done)
    said = f"{expired:,} snapshots expired, {deleted:,} files deleted"
    say(said, snapshots_expired=expired, files_deleted=deleted)


@option_groups
def replay_dead_letters(
    topic: Topic = "",
    format: Format = "json",
    evolve: ReplayEvolve = "strict",
    *,
    table: TableOptions,
    ids: ExportIdOptions,
    records: RecordOptions,
    broker: BrokerOptions,
) -> None:
    """Write the dead letters of an export that can be decoded now to its table, each once. The
    partitioning is the table's."""
    with user_errors():
        from lakemq.spark_plugin.export.decoding.column_types import EVOLVE
        from lakemq.spark_plugin.export.decoding.given_schema import read_schema

        kind = record_format(format)
        changes: Evolve = choice("--evolve", evolve, EVOLVE)
        opens = "add" if changes == "strict" else changes  # it may have more than --schema names
        settings = export_settings(
            required("--topic", topic),
            kind,
            table,
            ids,
            records,
            broker,
            value_schema=read_schema(kind, records.schema),
            evolve="strict" if kind == "raw" else opens,
        )
        done = _replayed(settings, changes, records.master)
    left_out = f", {done.left_out:,} are filtered out by the query" if done.left_out else ""
    said = (
        f"{topic}: {done.landed:,} dead letters written, {done.before:,} were written before, "
        f"{done.still_bad:,} still cannot be decoded{left_out}"
    )
    say(said, topic=topic, **vars(done))


def _replayed(settings: ExportSettings, evolve: Evolve, master: str) -> Replayed:
    from lakemq.spark_plugin.export.job.run import replay_target
    from lakemq.spark_plugin.session import open_session

    if not settings.sql:
        return replay_target(settings, evolve=evolve)
    spark = open_session(f"lakemq dlq replay {settings.topic}", master or None)
    try:
        return replay_target(settings, spark)
    finally:
        spark.stop()
