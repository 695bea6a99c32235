"""`lakemq export status`: how far exports are behind their topics. Needs no Spark."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import typer

from lakemq.broker_core.api.command_line import (
    BrokerOptions,
    clock,
    is_json,
    option_groups,
    print_json,
    print_table,
)
from lakemq.spark_plugin.cli.broker_access import access_of
from lakemq.spark_plugin.cli.options import (
    ExportIdOptions,
    TableOptions,
    Topic,
    required,
    user_errors,
)
from lakemq.spark_plugin.errors import OptionError

if TYPE_CHECKING:
    from lakemq.spark_plugin.export.maintenance.status import ReportedExport


@option_groups
def export_status(
    topic: Topic = "",
    *,
    table: TableOptions,
    ids: ExportIdOptions,
    broker: BrokerOptions,
) -> None:
    """Show how far exports are behind their topics.

    With --to the table itself is asked, partition by partition. Without, it lists what exports told
    the broker after their last commits (all, or those of --topic or --export-id).
    """
    with user_errors():
        if table.to:
            _status_of_table(required("--topic", topic), table, ids, broker)
            return
        if table != TableOptions():
            raise OptionError("--to is missing; without a table there are no other options of one")
        found = _reported(topic, ids.export_id, broker)
    rows = [
        (each.export_id, each.topic, each.format, each.table, each.commit, each.dead_letters,
         each.lag, clock(each.committed_ms))
        for each in found
    ]  # fmt: skip
    headings = ("export", "topic", "to", "table", "commits", "dead letters", "lag", "last (UTC)")
    print_table(headings, rows, data=[vars(each) for each in found])


def _status_of_table(
    topic: str, table: TableOptions, ids: ExportIdOptions, broker: BrokerOptions
) -> None:
    from lakemq.spark_plugin.export.job.run import status_target

    target = table.target()
    found = status_target(
        broker.bootstrap, topic, target, ids.export_id or topic, access_of(broker)
    )
    if is_json():
        print_json(found)
        return
    typer.echo(f"{topic}: {found.commit:,} commits to {found.table}, lag {found.lag:,}")
    rows = [
        (each.partition, each.log_start, each.next_offset, each.high_watermark, each.lag)
        for each in found.partitions
    ]
    print_table(("partition", "log start", "next offset", "high watermark", "lag"), rows)


def _reported(topic: str, export_id: str, broker: BrokerOptions) -> list[ReportedExport]:
    from lakemq.plugins.native.sdk import LakeMQError
    from lakemq.spark_plugin.export.maintenance.status import reported_exports
    from lakemq.spark_plugin.source.broker_reader import open_client

    ends: dict[str, dict[int, int]] = {}
    with open_client(broker.bootstrap, access_of(broker)) as client:
        groups = client.groups()
        for name in {each.topic for each in reported_exports(groups, {})}:
            if topic in ("", name):
                with contextlib.suppress(LakeMQError):  # deleted, or not the caller's to see
                    partitions = client.describe_topic(name).partitions
                    ends[name] = {each.partition: each.high_watermark for each in partitions}
    return [
        each
        for each in reported_exports(groups, ends)
        if topic in ("", each.topic) and export_id in ("", each.export_id)
    ]
