"""Many topics in one job: which topics, and which table each goes to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.tables.target import Target

TOPIC_PLACEHOLDER = "{topic}"
"""Stands for the name of the topic in paths and table names."""


def matching(pattern: str, topics: Iterable[str]) -> list[str]:
    """Names that the pattern matches as a whole. OptionError if the pattern is not valid."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise OptionError(f"--topics-pattern is not a regular expression: {error}") from None
    return sorted(name for name in topics if wanted.fullmatch(name))


def check_pattern(pattern: str, target: Target, *, routed: bool) -> None:
    """OptionError unless each topic gets tables of its own."""
    matching(pattern, ())
    if target.format == "iceberg":
        _table(target.table, "")
    if routed and TOPIC_PLACEHOLDER not in (target.table or target.path):
        raise OptionError(
            "--topics-pattern with --route-by gives each topic tables of its own: {topic} is "
            "missing, as in --path lake/{topic}/{route}"
        )


def settings_of(shared: ExportSettings, topic: str) -> ExportSettings:
    """The settings of one topic's export: a table of its own, and the topic as export id unless
    the user named one."""
    target = shared.target
    if target.format == "iceberg":
        target = replace(target, table=_table(target.table, topic))
        dlq = _table(shared.dlq, topic) if shared.dlq else ""
    else:
        target = replace(target, path=_path(target.path, topic))
        dlq = _path(shared.dlq, topic) if shared.dlq else ""
    return replace(shared, topic=topic, target=target, dlq=dlq, export_id=shared.export_id or topic)


def _path(path: str, topic: str) -> str:
    return (
        path.replace(TOPIC_PLACEHOLDER, topic)
        if TOPIC_PLACEHOLDER in path
        else f"{path.rstrip('/')}/{topic}"
    )


def _table(table: str, topic: str) -> str:
    if TOPIC_PLACEHOLDER not in table:
        raise OptionError(
            f"{table} would hold all topics: --topics-pattern needs a name such as "
            f"lake.{TOPIC_PLACEHOLDER}"
        )
    return table.replace(TOPIC_PLACEHOLDER, re.sub(r"\W", "_", topic))


def check_distinct(taken: Mapping[str, str], settings: ExportSettings) -> None:
    """OptionError if a table of another topic has the same name. `taken`: table -> topic."""
    for table in tables_of(settings):
        other = taken.get(table)
        if other not in (None, settings.topic):
            raise OptionError(
                f"topics {other} and {settings.topic} would both go to table {table}; "
                f"{settings.topic} is skipped"
            )


def tables_of(settings: ExportSettings) -> list[str]:
    """The tables of one topic's export: rows, and dead letters if there can be any."""
    targets = [settings.target]
    if settings.format != "raw":
        targets.append(settings.target.dead_letters(settings.dlq))
    return [each.table or each.path for each in targets]


def have_conflicts(wanted: Sequence[ExportSettings]) -> bool:
    """Whether two of the topics want the same table."""
    tables = [table for each in wanted for table in tables_of(each)]
    return len(tables) > len(set(tables))
