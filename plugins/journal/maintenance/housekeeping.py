"""What has to be done now and then: free space, segment age, retention, compaction, producers.

A tick looks at every partition in turn, on a thread of its own where files are touched; whatever
goes wrong with one partition is logged and the next one is looked at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from lakemq.broker_core.api.errors import LakeMQError, StorageFenced
from lakemq.broker_core.api.state.internal_topics import is_internal
from lakemq.broker_core.api.types import TopicConfig
from lakemq.plugins.journal.log.context import LogContext
from lakemq.plugins.journal.log.folder import LogFolder
from lakemq.plugins.journal.log.partition_log import JournalLog
from lakemq.plugins.journal.maintenance.compactor import CompactionLimits, Compactor
from lakemq.plugins.journal.maintenance.retention import retained
from lakemq.plugins.journal.maintenance.scrub import Scrub
from lakemq.plugins.journal.segment.files import Files
from lakemq.plugins.journal.segment.walk import BadBatch
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.tiering.object_store import ObjectStore, StoreError
from lakemq.plugins.journal.tiering.uploader import Tier, delete_topic_objects

_log = logging.getLogger(__name__)
T = TypeVar("T")
_LOGS_A_TURN = 50
"""Partitions that are looked at in one go: enough that going to the thread and back does not
count, few enough that the event loop is not held up."""
DELETED = "deleted"
"""Folder of topics and replicas on their way out."""
REPLICA_MARK = "."
"""Between topic id and partition in the name of a replica's folder there."""


def retain(
    folder: LogFolder,
    config: TopicConfig,
    now_ms: int,
    offset_end: int,
    *,
    by_policy: bool = True,
) -> int:
    """Delete what retention gives up below `offset_end`; returns how many segments. Not
    `by_policy`: only what is below the log's start.

    OSError, StorageFenced.
    """
    with folder.changing:
        manifest, gone = retained(
            folder.manifest, folder.active_index.covered_bytes, config, now_ms, offset_end,
            by_policy=by_policy,
        )  # fmt: skip
        if not gone:
            return 0
        folder.commit(manifest)
    for segment in gone:
        folder.drop_files(segment)
    return len(gone)


def _limit(setting: int) -> int | None:
    return None if setting < 0 else setting


class Maintenance:
    """The background work of one storage engine."""

    def __init__(
        self,
        context: LogContext,
        settings: JournalSettings,
        files: Files,
        path: Path,
        logs: Callable[[], Iterable[JournalLog]],
        store: ObjectStore | None,
    ) -> None:
        self._context = context
        self.reconfigure(settings)
        self._files = files
        self._path = path
        self._logs = logs
        self._stopping = False
        self._store = store
        self._thread = ThreadPoolExecutor(1, "journal-maintain")
        self._tasks = [asyncio.ensure_future(self._run(self.tick))]
        if settings.scrub_max_bytes_per_s:
            scrub = Scrub(
                logs, context.counters, self._in_thread,
                bytes_per_s=settings.scrub_max_bytes_per_s,
                interval_s=settings.scrub_interval_ms / 1000,
            )  # fmt: skip
            self._tasks.append(asyncio.ensure_future(scrub.run()))
        if store is not None:
            self._tasks.append(asyncio.ensure_future(self._run(self.tick_tiering)))

    def reconfigure(self, settings: JournalSettings) -> None:
        """Work by these from now on; what runs ends as it began."""
        self._settings = settings
        self._limits = CompactionLimits(
            settings.compaction_keys_max,
            settings.compaction_dirty_ratio_min,
            settings.compaction_lag_max_ms,
        )

    async def stop(self) -> None:
        """End the work; a compaction under way is given up at the next segment."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._context.loop.run_in_executor(None, self._thread.shutdown)

    async def _run(self, tick: Callable[[], Awaitable[None]]) -> None:
        while True:
            await tick()
            await asyncio.sleep(self._settings.maintenance_interval_ms / 1000)

    async def tick(self) -> None:
        """Look at everything once."""
        await self._in_thread(self._look_at_space)
        logs = list(self._logs())
        for first in range(0, len(logs), _LOGS_A_TURN):
            some = logs[first : first + _LOGS_A_TURN]
            now_ms = self._context.now_ms()
            for log in some:
                log.tick(now_ms, now_ms - self._settings.producer_expiry_ms)
            await self._in_thread(partial(self._maintain_some, some))

    def _maintain_some(self, logs: Sequence[JournalLog]) -> None:
        for log in logs:
            if self._stopping:
                return
            self.maintain(log)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._context.loop.run_in_executor(self._thread, work)

    def _look_at_space(self) -> None:
        try:
            free = self._files.free_bytes(self._path)
        except OSError as error:
            _log.warning("free space of %s is unknown: %s", self._path, error)
            return
        context = self._context
        # Appends subtract from it on the event loop meanwhile: whichever of the two is lost, the
        # next look makes up for it.
        context.room_bytes = free - self._settings.free_min_bytes - context.unflushed_bytes

    async def tick_tiering(self) -> None:
        """Copy, give up and delete what is due in the object store, partition by partition."""
        context = self._context
        await context.loop.run_in_executor(context.remote_readers, self._delete_topics)
        for log in list(self._logs()):
            await context.loop.run_in_executor(context.remote_readers, self.tier, log)

    def _delete_topics(self) -> None:
        """Objects of topics whose folders wait for that, in `deleted`."""
        if self._store is None:
            return
        for topic_id in self._files.names(self._path / DELETED):
            try:
                # Of a replica that moved away, the objects stay: other replicas read them.
                if REPLICA_MARK not in topic_id:
                    delete_topic_objects(self._store, topic_id)
                self._files.remove_folder(self._path / DELETED / topic_id)
            except (StoreError, OSError) as error:
                _log.warning("objects of deleted topic %s are still there: %s", topic_id, error)

    def tier(self, log: JournalLog) -> None:
        """Tiering of one partition; blocking, never raises an Exception."""
        config, settings = log.config, self._settings
        if self._store is None or not log.is_open():
            return
        # Only the leader writes: what it does to objects, it does to those of all replicas.
        leads = log.leads
        tier = Tier(self._store, log.folder, leads=leads)
        try:
            stays = "compact" in config.cleanup or is_internal(log.topic)
            if not stays:
                tier.adopt(log.copy_end())
            while leads and not stays and not self._stopping and tier.copy_next(log.copy_end()):
                continue
            tier.drop_local(
                self._context.now_ms(), log.checkpoint_offset(),
                bytes_max=_limit(settings.tiering_local_bytes),
                age_max_ms=_limit(settings.tiering_local_ms),
                retention_by=config.retention_by,
            )  # fmt: skip
            if leads:
                tier.sweep()
        except StorageFenced as error:
            self._context.loop.call_soon_threadsafe(log.fence, str(error))
        except (OSError, StoreError, BadBatch) as error:
            if log.is_open():
                _log.error("tiering of %s: %s", log.folder.path, error)
        except Exception:  # One partition's trouble must not end the work on all others.
            _log.exception("tiering of %s", log.folder.path)

    def maintain(self, log: JournalLog) -> None:
        """Retention and compaction of one partition; blocking, never raises an Exception."""
        config, folder, now_ms = log.config, log.folder, self._context.now_ms()
        if not log.is_open():
            return
        try:
            # A follower's log starts where its leader's does (`delete_records`).
            retain(folder, config, now_ms, log.retention_end(), by_policy=log.leads)
            if "compact" in config.cleanup.split(","):
                compactor = Compactor(folder, config, self._limits, now_ms, lambda: self._stopping)
                compactor.run(log.retention_end())
        except StorageFenced as error:
            self._context.loop.call_soon_threadsafe(log.fence, str(error))
        except (OSError, LakeMQError) as error:
            if log.is_open():
                _log.error("maintenance of %s: %s", folder.path, error)
        except Exception:  # One partition's trouble must not end the work on all others.
            _log.exception("maintenance of %s", folder.path)
