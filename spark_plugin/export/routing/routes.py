"""The tables of a routed export, one for each route, and their ledger.

The ledger takes the role that the table has in other exports: it stores offsets, epoch and owner.
Its commit follows those of the tables that got rows:

    new routes into the ledger -> dead letters -> table of each route -> ledger

Every table stores the topic's offsets in its own commits: it has all rows of its route below
them. A commit skips tables that get no row, whose offsets are therefore lower; the ledger stores
what all tables have. A table is complete up to the higher of the two.

A crash in between leaves some tables ahead of the ledger. The next run reads from the ledger's
offsets, which are the lowest of all, and each table skips what it has already. That is correct as
long as a record goes to the same table again, so the routing rule must not change then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.export.job.landing import Files, LandingTable, Pause
from lakemq.spark_plugin.export.job.ledger import ROUTE, RULE, read_state, write_rows
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.task_results import DataFile, NewFields, NewRoutes, TaskResult
from lakemq.spark_plugin.export.maintenance.compaction import Compacted
from lakemq.spark_plugin.export.routing.rules import RouteTarget, Routing
from lakemq.spark_plugin.export.tables import table as lake
from lakemq.spark_plugin.export.tables.files import delete_orphans, delete_strays, new_token
from lakemq.spark_plugin.export.tables.open_table import open_table
from lakemq.spark_plugin.export.tables.partitioning import parse_partition_by
from lakemq.spark_plugin.export.tables.table import ExportKey, LakeTable, Progress, WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa

    from lakemq.spark_plugin.export.job.write_task import WriteTask


@dataclass
class Route:
    """One table. The folder of its next attempt is kept while the route gets no rows, so an idle
    table costs nothing."""

    name: str
    landing: LandingTable
    progress: Progress


class Routes:
    """All tables that the export has; a `Landing`."""

    def __init__(
        self, settings: ExportSettings, ledger: LakeTable, schema: pa.Schema, pause: Pause
    ) -> None:
        """`schema`: columns of tables that are made."""
        self.head = ledger
        self._settings = settings
        self._schema = schema
        self._pause = pause
        self._started = Progress()
        self._key: ExportKey | None = None
        self._open: dict[str, Route] = {}
        self._grown: list[Route] = []
        """Tables that the last commit added files to."""

    def start(self, key: ExportKey, now: Progress) -> list[str]:
        """OptionError if the routing rule has changed while tables are ahead of the ledger."""
        self._key, self._started = key, now
        known = read_state(self.head, key.export_id, key.topic)
        deleted = [each for name in known.routes for each in self._add(key, name, now.offsets)]
        rule = _rule_of(self._settings)
        if known.rule != rule:
            # A table that is ahead skips the records that it has. Under another rule they would go
            # to another table, and be in both, or in none.
            if known.rule and self._is_ahead(now.offsets):
                raise OptionError(
                    "the last run ended between the commits of two tables: run the export once "
                    f"as it was ({_difference(known.rule, rule)}), then change where records go"
                )
            # Noted before the first record is routed by it.
            now = self._note(key, now, RULE, [rule])
        default = self._settings.route_default
        if default and default not in self._open:
            self._add_new(key, now, [default])
        return deleted

    def _note(self, key: ExportKey, before: Progress, kind: str, values: Sequence[str]) -> Progress:
        """Commit rows of the ledger."""
        after = replace(before, attempt=before.attempt + 1, commit=new_token())
        # Attempt numbers are used up by commits of the ledger's own rows too, so no two attempts
        # share one.
        files = write_rows(self.head, key, after.epoch, after.attempt, kind, values)
        lake.commit(self.head, key, files, before, after, self._pause)
        return after

    def _add_new(self, key: ExportKey, before: Progress, names: Sequence[str]) -> Progress:
        """Create tables for routes, which are in the ledger first."""
        # The ledger first: a table that a crash left without a ledger entry would be unknown to
        # every later run.
        after = self._note(key, before, ROUTE, names)
        for name in names:
            self._add(key, name, after.offsets)
        return after

    def _add(self, key: ExportKey, name: str, offsets: Mapping[int, int]) -> list[str]:
        """Open a table, created if absent, as complete up to `offsets`, which the ledger says of
        all. Its new epoch fences other processes, whose left-over folders are deleted; returns
        the names of these."""
        settings = self._settings
        table = open_table(
            settings.target.of_route(name),
            self._schema,
            parse_partition_by(settings.partition_by),
            evolve=settings.evolve,
        )

        def following(before: Progress) -> Progress:
            return self._after(key, before, offsets, before.attempt)

        epoch = self._started.epoch
        before, after = lake.take_epoch(table, key, epoch, following, self._pause)
        landing = LandingTable(settings, table, self._pause)
        self._open[name] = Route(name, landing, after)
        delete_strays(landing.folder, key, after.epoch, table.reachable_files)
        return delete_orphans(landing.folder, key, after.epoch, before.attempt)

    def _after(
        self, key: ExportKey, before: Progress, offsets: Mapping[int, int], attempt: int
    ) -> Progress:
        """Offsets only ever grow: a table may be ahead of the others after a crash."""
        # Offsets of a table never go back, or rows above them would be written again.
        reached = {**before.offsets}
        for partition, offset in offsets.items():
            reached[partition] = max(offset, reached.get(partition, 0))
        return Progress(
            self._started.epoch,
            attempt,
            self._started.process,
            new_token(),
            lake.topic_mark(key.topic_id),
            reached,
        )

    def _is_ahead(self, offsets: Mapping[int, int]) -> bool:
        """Whether a table has rows above the ledger's offsets: a commit stopped halfway."""
        return any(
            offset > offsets.get(partition, 0)
            for route in self._open.values()
            for partition, offset in route.progress.offsets.items()
        )

    def invalidate(self) -> None:
        """An attempt failed: the next `prepare` reloads every table and its progress."""
        self._key = None

    def prepare(self, key: ExportKey, now: Progress) -> None:
        """Create a folder for the next attempt in every table that has none yet; after a failure,
        from the table's newest state."""
        for route in self._open.values():
            # The first attempt, or an earlier one failed: a commit may have been applied all the
            # same, so the tables tell where they are.
            if key != self._key:
                route.landing.reload()
                route.progress = route.landing.table.progress(key)
            route.landing.prepare(key, self._started.epoch, route.progress)
        self._key = key

    def assign_destination(self, task: WriteTask) -> WriteTask:
        """The task with its routing: the tables of all routes, each with the offset that it has
        everything below."""
        settings = self._settings
        routing = Routing(
            settings.route_by,
            settings.route_default,
            settings.routes_max,
            settings.target.format,
            tuple(self._target(each, task.offsets.partition) for each in self._open.values()),
            settings.format == "json" and settings.evolve != "strict",
        )
        return replace(task, routing=routing)

    def _target(self, route: Route, partition: int) -> RouteTarget:
        """The route's table as tasks of the partition need it."""
        landing = route.landing
        return RouteTarget(
            route.name,
            landing.table.location,
            landing.attempt_path,
            landing.columns.table_schema,
            route.progress.offsets.get(partition, 0),
            landing.columns.value_schema,
        )

    def evolve_schema(
        self, key: ExportKey, now: Progress, results: Sequence[TaskResult]
    ) -> Progress | None:
        """Create the columns and tables that the results ask for. Returns the progress of the
        ledger, which new routes are committed to before their tables exist; None: nothing was asked
        for."""
        changed = False
        for route in self._open.values():
            changed |= route.landing.columns.extend(
                [
                    result
                    for result in results
                    if isinstance(result, NewFields) and result.route == route.name
                ]
            )
        new = self._new_names(results)
        if not new and not changed:
            return None
        self._restart()
        return self._add_new(key, now, new) if new else now

    def _new_names(self, results: Sequence[TaskResult]) -> list[str]:
        """Routes that get a table: those that tasks found, in a fixed order, up to `routes_max`."""
        met: dict[str, None] = {}
        found = [each for each in results if isinstance(each, NewRoutes)]
        # In a fixed order, for with `routes_max` it decides who gets a table; a run after a crash
        # must decide the same.
        for each in sorted(found, key=lambda each: (each.partition, each.start)):
            met |= dict.fromkeys(each.names)
        room = self._settings.routes_max - len(self._open)
        return [name for name in met if name not in self._open][: max(0, room)]

    def _restart(self) -> None:
        for route in self._open.values():
            route.landing.restart()

    def finish(self, results: Sequence[TaskResult]) -> Files:
        """The data files of the results by route."""
        files: dict[str, list[WrittenFile]] = {}
        for result in results:
            if isinstance(result, DataFile):
                files.setdefault(result.route, []).append(result.file)
        return files

    def commit(self, key: ExportKey, files: Files, before: Progress, after: Progress) -> None:
        """Commit each table that has files, with its offsets, one after the other."""
        self._grown = []
        for name, mine in files.items():
            route = self._open[name]
            reached = self._after(key, route.progress, after.offsets, route.progress.attempt + 1)
            route.landing.commit(key, mine, route.progress, reached)
            # At once, and not after all tables: if a later one fails, this one stays ahead and
            # skips what it has.
            route.progress = reached
            self._grown.append(route)
        # Last. Its offsets are the lowest of all, so that a run after a crash reads everything that
        # a table may lack.
        lake.commit(self.head, key, [], before, after, self._pause)

    def compact(self, key: ExportKey) -> Compacted | None:
        """Only the tables that the last commit grew."""
        done = []
        for route in self._grown:
            # The folder belongs to the attempt number that the compaction's commit takes.
            route.landing.restart()
            each = route.landing.compact(self._settings, key, self._started.epoch)
            if each is not None:
                done.append(each)
                route.landing.reload()
                route.progress = route.landing.table.progress(key)
        self._grown = []
        if not done:
            return None
        return Compacted(sum(each.removed for each in done), sum(each.added for each in done))

    def tables(self) -> list[LakeTable]:
        """The tables of all routes, without the ledger."""
        return [route.landing.table for route in self._open.values()]

    def close(self) -> None:
        """Folders of a commit that failed are deleted by the next run."""
        if self._key is not None:
            self._restart()


def _rule_of(settings: ExportSettings) -> str:
    """The settings that decide which table a record goes to, as text to compare."""
    names = (
        "route_by",
        "route_default",
        "routes_max",
        "format",
        "value_schema",
        "message",
        "delimiter",
    )
    return json.dumps({name: getattr(settings, name) for name in names})


def _difference(old: str, new: str) -> str:
    """The settings of the old rule that differ from the new one."""
    was, is_now = json.loads(old), json.loads(new)
    return ", ".join(
        f"{name} {str(value)[:200]!r}" for name, value in was.items() if value != is_now.get(name)
    )
