"""The storage engine: all partition logs of this node. Implements the `Storage` port.

On disk, below the plugin's folder: `topics/<topic id>/<partition>/`, so that a topic that was
deleted and created again has another id; `deleted/` for topics on their way out;
`lock`; `clean-shutdown` while no node runs and the last one stopped in good order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final

from lakemq.broker_core.api.errors import (
    ConfigError,
    StartupError,
    StorageFenced,
    StorageFull,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from lakemq.broker_core.api.types import Disowned, TopicInfo
from lakemq.plugins.journal.inventory import Inventory
from lakemq.plugins.journal.log.context import Counters, LogContext
from lakemq.plugins.journal.log.flusher import Flusher, ThreadFlusher
from lakemq.plugins.journal.log.folder import IndexCache
from lakemq.plugins.journal.log.partition_log import JournalLog
from lakemq.plugins.journal.log.recovery import (
    Recovered,
    Recovery,
    RecoveryContext,
    create_partition,
)
from lakemq.plugins.journal.maintenance.housekeeping import DELETED, REPLICA_MARK, Maintenance
from lakemq.plugins.journal.segment.files import (
    NO_DESCRIPTOR,
    NO_SPACE,
    OPEN_FILES_FEW,
    DiskFiles,
    Files,
    FolderLock,
    raise_open_files_limit,
)
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.tiering.object_store import ObjectStore, open_store

_log = logging.getLogger(__name__)
TOPICS: Final = "topics"
LOCK: Final = "lock"
CLEAN: Final = "clean-shutdown"

_Key = tuple[str, int]
"""(topic id, partition)"""


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class JournalStorage:
    """Owns every partition log below one folder."""

    name = "journal"

    def __init__(
        self,
        path: Path,
        settings: JournalSettings,
        *,
        files: Files | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.path = path
        self.settings = settings
        self.counters = Counters()
        self._files = DiskFiles() if files is None else files
        self._now_ms = now_ms
        self._recovery = RecoveryContext(
            self._files, IndexCache(), now_ms, settings.index_interval_bytes
        )
        self._inventory = Inventory(self._files, path)
        self._recovered: dict[_Key, Recovered] = {}
        self._disowned: list[Disowned] = []
        self._logs: dict[_Key, JournalLog] = {}
        self._opening: dict[_Key, asyncio.Task[JournalLog]] = {}
        self._lock: FolderLock | None = None
        self._context: LogContext | None = None
        self._flusher: ThreadFlusher | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._remote_readers: ThreadPoolExecutor | None = None
        self._maintenance: Maintenance | None = None

    # ------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Lock the folder and recover every partition in it. StartupError."""
        loop = asyncio.get_running_loop()
        limit = raise_open_files_limit()
        if limit < OPEN_FILES_FEW:
            _log.warning(
                "this process may open %d files and sockets only: raise its limit "
                "(ulimit -n, LimitNOFILE=) to %d or more",
                limit,
                OPEN_FILES_FEW,
            )
        self._readers = ThreadPoolExecutor(self.settings.read_threads, "journal-read")
        try:
            await loop.run_in_executor(self._readers, self._prepare_folder)
            await self._recover_all(loop)
        except (OSError, StartupError, ConfigError) as error:
            self._readers.shutdown()
            if self._lock is not None:
                self._lock.release()
                self._lock = None
            if not isinstance(error, OSError):
                raise
            raise StartupError(f"journal in {self.path}: {error}") from None
        self._flusher = ThreadFlusher(loop, self.settings.flush_threads)
        self._remote_readers = ThreadPoolExecutor(self.settings.read_threads, "journal-remote")
        self._context = self.make_context(loop, self._flusher, self._readers, self._remote_readers)
        self._maintenance = Maintenance(
            self._context,
            self.settings,
            self._files,
            self.path,
            self._logs.values,
            self._recovery.store,
        )

    def make_context(
        self,
        loop: asyncio.AbstractEventLoop,
        flusher: Flusher,
        readers: Executor,
        remote_readers: Executor,
    ) -> LogContext:
        """What all logs share."""
        settings = self.settings
        return LogContext(
            loop, flusher, readers, remote_readers, self._now_ms, settings.unflushed_max_bytes,
            settings.unflushed_total_max_bytes, settings.checkpoint_interval_bytes,
            settings.producers_max, self.counters,
        )  # fmt: skip

    def _prepare_folder(self) -> None:
        files = self._files
        files.make_folder(self.path / TOPICS)
        try:
            self._lock = FolderLock(self.path / LOCK)
        except BlockingIOError:
            raise StartupError(f"{self.path} is in use by another process") from None
        self._recovery.clean = files.exists(self.path / CLEAN)
        if not self._recovery.clean:
            _log.info("%s was not shut down in good order, or is new", self.path)
        # Gone durably (the sync below) before anything is written: a crash must not look like a
        # stop in good order.
        files.remove(self.path / CLEAN)
        self._recovery.store = self._open_store()
        # With an object store they stay until their objects are deleted.
        if self._recovery.store is None:
            for name in files.names(self.path / DELETED):
                files.remove_folder(self.path / DELETED / name)
        files.sync_folder(self.path)

    def _open_store(self) -> ObjectStore | None:
        settings = self.settings
        if not settings.tiering_url:
            return None
        options = {
            name: secret.get_secret_value() for name, secret in settings.tiering_options.items()
        }
        return open_store(self._files, settings.tiering_url, options)

    async def _recover_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """All partitions at once, as many at a time as there are reader threads."""
        keys = [
            (topic_id, int(name))
            for topic_id in self._files.names(self.path / TOPICS)
            for name in self._files.names(self.path / TOPICS / topic_id)
            if name.isdecimal()
        ]
        found = await asyncio.gather(
            *(loop.run_in_executor(self._readers, self._try_recover, key) for key in keys)
        )
        present, self._disowned = set(), []
        for key, recovered in zip(keys, found, strict=True):
            if recovered is None:
                continue  # The folder is empty.
            present.add(key)
            damage = recovered
            if isinstance(recovered, Recovered):
                self._recovered[key] = recovered
                damage = recovered.damage
            if damage:
                self._disowned.append(Disowned(*key, str(damage), missing=False))
        missing = await loop.run_in_executor(self._readers, self._inventory.load, present)
        for key in sorted(missing):
            _log.error("%s is missing: what it held is lost", self._folder_of(key))
            self._disowned.append(Disowned(*key, "its folder is missing", missing=True))

    def _recover(self, key: _Key) -> Recovered | None:
        return Recovery(self._recovery, self._folder_of(key)).run()

    def _try_recover(self, key: _Key) -> Recovered | str | None:
        """The reason in place of a partition that can't be recovered: it must not keep the others
        from starting. Opening it raises the error."""
        try:
            return self._recover(key)
        except OSError as error:
            _log.error("%s cannot be recovered: %s", self._folder_of(key), error)
            return f"it cannot be recovered: {error}"

    def _folder_of(self, key: _Key) -> Path:
        return self.path / TOPICS / key[0] / str(key[1])

    async def stop(self) -> None:
        """Flush, write checkpoints and the mark of a clean shutdown, close."""
        if self._readers is None or self._flusher is None:
            return
        loop = asyncio.get_running_loop()
        if self._maintenance is not None:
            await self._maintenance.stop()
        logs = list(self._logs.values())
        self._logs.clear()
        await asyncio.gather(*(log.close() for log in logs))
        await asyncio.gather(
            *(
                loop.run_in_executor(self._readers, partial(log.close_files, checkpoint=True))
                for log in logs
            )
        )
        # After a failed fsync what the page cache shows may not be durable, so this is no stop in
        # good order.
        fenced = any(log.is_fenced for log in logs)
        # Last: the mark vouches for everything that was written before.
        await loop.run_in_executor(self._readers, self._leave_folder, not fenced)
        self._flusher.close()
        self._readers.shutdown()
        if self._remote_readers is not None:
            self._remote_readers.shutdown()
        self._flusher = self._readers = self._context = None

    def _leave_folder(self, clean: bool) -> None:
        try:
            if clean:
                self._files.create(self.path / CLEAN).close()
            self._files.sync_folder(self.path)
        except OSError as error:
            _log.warning("%s: no clean-shutdown mark written: %s", self.path, error)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # ------------------------------------------------------------ what metrics read

    def flush_seconds(self) -> float:
        """Time that the flush threads have spent so far (s)."""
        return self._flusher.busy_ns / 1e9 if self._flusher is not None else 0.0

    def unflushed_bytes(self) -> int:
        """Bytes appended and not durable yet."""
        return self._context.unflushed_bytes if self._context is not None else 0

    def open_partitions(self) -> int:
        """Number of open partitions."""
        return len(self._logs)

    def fenced_partitions(self) -> int:
        """Number of partitions that take no appends after a failed fsync."""
        return sum(log.is_fenced for log in list(self._logs.values()))

    def damaged_segments(self) -> int:
        """Number of segments of open partitions that are known to be damaged."""
        return sum(len(log.folder.damages) for log in list(self._logs.values()))

    def size_bytes(self) -> int:
        """Bytes of all open partitions on disk."""
        return sum(log.folder.size_bytes() for log in list(self._logs.values()))

    # ------------------------------------------------------------ partitions

    async def open_partition(self, topic: TopicInfo, partition: int) -> JournalLog:
        """The partition's log; the same one while it is open."""
        key = (topic.topic_id, partition)
        log = self._logs.get(key)
        if log is not None:
            return log
        if partition < 0:
            raise UnknownPartition(f"partition {partition} of {topic.name}")
        opening = self._opening.get(key)
        if opening is None:
            opening = asyncio.ensure_future(self._open(key, topic))
            self._opening[key] = opening
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        # Shared by all that ask meanwhile: one that is cancelled must not end it for the others.
        return await asyncio.shield(opening)

    async def _open(self, key: _Key, topic: TopicInfo) -> JournalLog:
        context = self._running()
        recovered = self._recovered.pop(key, None)
        if recovered is None:
            recovered = await context.loop.run_in_executor(
                self._readers, self._recover_or_create, key, topic
            )
        share = self._tail_share(len(self._logs) + 1)
        recovered.folder.adopt(topic.name)
        log = JournalLog(context, recovered, topic.name, key[1], topic.config, share)
        self._logs[key] = log
        self._share_tails()
        return log

    def _recover_or_create(self, key: _Key, topic: TopicInfo) -> Recovered:
        path = self._folder_of(key)
        try:
            found = self._recover(key)
            if found is None:
                found = create_partition(self._recovery, path, topic.name, key[0], key[1])
            # Behind the folder, which holds nothing yet: one that a crash leaves without a line is
            # taken in at the next start.
            self._inventory.add(key)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise StorageFull(f"no space left to open {path}") from None
            if error.errno in NO_DESCRIPTOR:
                raise Unavailable(f"{path} is not opened now: {error.strerror}") from None
            raise StorageFenced(f"{path} cannot be opened: {error}") from None
        return found

    def _running(self) -> LogContext:
        if self._context is None:
            raise StartupError("the journal is not started")
        return self._context

    def _tail_share(self, logs: int) -> int:
        return min(self.settings.tail_max_bytes, self.settings.tail_total_max_bytes // max(1, logs))

    def _share_tails(self) -> None:
        """Divide the memory for tails evenly; each log obeys at its next flush or tick."""
        share = self._tail_share(len(self._logs))
        for log in self._logs.values():
            # All logs have the same share, so the first tells for all.
            if log.tail.bytes_max == share:
                break
            log.tail.bytes_max = share

    def together(self) -> AbstractContextManager[None]:
        """See the port."""
        return self._flusher or nullcontext()

    def reconfigure(self, settings: JournalSettings) -> Callable[[], None]:
        """See `Reconfigurable`."""

        def apply() -> None:
            self.settings = settings
            self._share_tails()
            if self._maintenance is not None:
                self._maintenance.reconfigure(settings)

        return apply

    async def configure_topic(self, topic: TopicInfo) -> None:
        """Obey a changed topic config from now on."""
        for (topic_id, _), log in self._logs.items():
            if topic_id == topic.topic_id:
                log.configure(topic.config)

    async def delete_topic(self, topic_id: str) -> None:
        """Close the topic's logs and free the disk; what waits to be written fails."""
        context = self._running()
        for key in [key for key in self._recovered if key[0] == topic_id]:
            del self._recovered[key]
        logs = [self._logs.pop(key) for key in list(self._logs) if key[0] == topic_id]
        for log in logs:
            log.discard_appends(UnknownTopic(f"topic {log.topic} is deleted"))
        await asyncio.gather(*(log.close() for log in logs))
        await context.loop.run_in_executor(self._readers, self._delete_folder, topic_id, logs)
        self._share_tails()

    def _delete_folder(self, topic_id: str, logs: list[JournalLog]) -> None:
        """Out of the way in one durable step first, so that no crash leaves half a topic."""
        for log in logs:
            log.close_files(checkpoint=False)
        self._inventory.remove(key for key in self._inventory.partitions() if key[0] == topic_id)
        old, gone = self.path / TOPICS / topic_id, self.path / DELETED / topic_id
        if not self._files.exists(old):
            return
        self._move_away(old, gone)
        if self._recovery.store is None:  # Otherwise it goes when its objects are deleted.
            self._files.remove_folder(gone)

    def _move_away(self, old: Path, gone: Path) -> None:
        self._files.make_folder(gone.parent)
        self._files.rename(old, gone)
        # The new name is durable before the old one goes, and then `deleted` itself, which may be
        # new.
        self._files.sync_folder(gone.parent)
        self._files.sync_folder(old.parent)
        self._files.sync_folder(self.path)

    async def delete_partition(self, topic_id: str, partition: int) -> None:
        """See the port. Copies in an object store stay: they are those of other replicas too."""
        context, key = self._running(), (topic_id, partition)
        # One that is being opened is deleted when it is open.
        opening = self._opening.get(key)
        if opening is not None:
            await asyncio.wait([opening])
        self._recovered.pop(key, None)
        log = self._logs.pop(key, None)
        if log is not None:
            log.discard_appends(Unavailable(f"partition {partition} of {log.topic} has moved away"))
            await log.close()
        await context.loop.run_in_executor(self._readers, self._delete_partition, key, log)
        self._share_tails()

    def _delete_partition(self, key: _Key, log: JournalLog | None) -> None:
        if log is not None:
            log.close_files(checkpoint=False)
        self._inventory.remove([key])
        old = self._folder_of(key)
        if self._files.exists(old):
            gone = self.path / DELETED / f"{key[0]}{REPLICA_MARK}{key[1]}"
            if self._files.exists(gone):
                self._files.remove_folder(gone)
            self._move_away(old, gone)
            self._files.remove_folder(gone)

    async def stored_partitions(self) -> set[tuple[str, int]]:
        """See the port."""
        self._running()
        missing = {(each.topic_id, each.partition) for each in self._disowned if each.missing}
        return self._inventory.partitions() - (missing - self._logs.keys())

    def is_full(self) -> bool:
        """See the port."""
        return self._context is not None and self._context.space_short

    def disowned(self) -> Sequence[Disowned]:
        """See the port."""
        return tuple(self._disowned)

    async def stored_topic_ids(self) -> set[str]:
        """Topics that have a folder."""
        context = self._running()
        names = await context.loop.run_in_executor(
            self._readers, self._files.names, self.path / TOPICS
        )
        return set(names)
