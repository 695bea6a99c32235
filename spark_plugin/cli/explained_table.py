"""The last station of `lakemq explain`: file, row and commit of a table that hold a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakemq.spark_plugin.cli.options import ExportIdOptions, TableOptions, user_errors

if TYPE_CHECKING:
    from lakemq.spark_plugin.export.maintenance.find_rows import FoundRow
    from lakemq.spark_plugin.export.tables.table import LakeTable


class ExplainedTable:
    """A table that an export writes, and its dead letters. What reads it is imported here, so that
    the command starts without `lakemq[spark]`; the errors end the command with one line."""

    def __init__(self, table: TableOptions, ids: ExportIdOptions) -> None:
        from lakemq.spark_plugin.errors import NoTable, OptionError

        with user_errors():
            from lakemq.spark_plugin.export.tables.open_table import open_table

            target = table.target()
            if target.is_routed:
                raise OptionError("explain takes the table of one route, not {route}")
            self._ids = ids
            self._table = open_table(target, None)
            self._dead: LakeTable | None = None
            try:
                self._dead = open_table(target.dead_letters(ids.dlq), None)
            except NoTable:
                if ids.dlq:
                    raise

    def rows_where(self, where: str, limit: int) -> list[FoundRow]:
        """Rows that a condition holds for."""
        with user_errors():
            from lakemq.spark_plugin.export.maintenance.find_rows import find_where

            return find_where(self._table, where, limit)

    def stations(self, message: dict[str, Any], topic_id: str) -> list[dict[str, Any]]:
        """Of a message that has a record."""
        topic, partition, offset = message["topic"], message["partition"], message["offset"]
        with user_errors():
            from lakemq.spark_plugin.export.maintenance.find_rows import find_record
            from lakemq.spark_plugin.export.tables.table import ExportKey

            found = find_record(self._table, topic, partition, offset)
            if not found and self._dead is not None:
                found = find_record(self._dead, topic, partition, offset)
            if found:
                return [row_station(each) for each in found]
            export = self._ids.export_id or topic
            key = ExportKey(export, topic, topic_id, (partition,))
            progress = self._table.progress(key)
            reached = progress.offsets.get(partition)
        if reached is None:
            what = f"not in the table; export {export} has not committed partition {partition}"
        elif reached <= offset:
            what = f"not in the table yet; export {export} goes on at offset {reached}"
        elif progress.upsert_mark:  # the table does not say which of the two
            what = (
                f"not in the table, which keeps the last record of each key; export {export} is at "
                f"offset {reached}: the key has a later record, or this one deleted its row"
            )
            return [_station("unknown", None, what, f"{self._table.location}")]
        else:
            what = (
                f"not in the table, although export {export} is at offset {reached}: the query "
                "of the export left it out, it was deleted there, or see `lakemq export audit`"
            )
        waits = reached is None or reached <= offset
        return [_station("waiting" if waits else "failed", None, what, f"{self._table.location}")]


def row_station(row: FoundRow) -> dict[str, Any]:
    """A row as a station."""
    by = "an earlier commit" if row.commit is None else row.commit.name
    at_ms = None if row.commit is None else row.commit.at_ms
    what = f"row {row.number} of {row.file}, added by {by}"
    if row.error:
        return _station("failed", at_ms, f"dead letter ({row.error}): {what}", "the table's log")
    return _station("ok", at_ms, what, "the table's log and the row itself")


def _station(state: str, at_ms: int | None, what: str, proof: str) -> dict[str, Any]:
    return {
        "station": "table", "state": state, "at_ms": at_ms, "node": "", "who": "", "what": what,
        "proof": proof,
    }  # fmt: skip
