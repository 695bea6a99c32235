"""RocksDB as the catalog's ordered key space.

Writes are not synced one by one: the Raft log holds whatever a crash may cost, and replays it. The
state row, written in the same batch as everything else, says how far the store has come. All calls
but `get` and `scan` are made by the Raft thread.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import rocksdict

from lakemq.meta_service.api.errors import StartupFailed, StorageFailed
from lakemq.meta_service.catalog.tables import STATE_KEY, State, decode_state
from lakemq.meta_service.raft.log.files import sync_folder, sync_tree
from lakemq.meta_service.raft.state import SnapshotSink
from lakemq.meta_service.storage.snapshot_stream import MANIFEST_NAME, FolderSink

_MEMTABLE_BYTES: Final = 16 * 1024 * 1024


def _options() -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    # A torn end of its write-ahead log is what a crash leaves; the Raft log has the rest.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1024 * 1024)
    options.set_stats_dump_period_sec(0)
    return options


def _open(path: Path) -> rocksdict.Rdict:
    """Raises StartupFailed."""
    try:
        return rocksdict.Rdict(str(path), _options())
    except Exception as error:  # rocksdict raises bare Exception
        raise StartupFailed(_why_not_open(path, str(error))) from error


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _finish_install(path: Path) -> None:
    """Complete what a crash in the middle of `install` left."""
    new, old = _beside(path, ".new"), _beside(path, ".old")
    # `install` renames the old database away before it renames the new one in, and the new one is
    # durable by then.
    if not path.exists() and new.exists():
        new.rename(path)
        sync_folder(path.parent)
    shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def copy_database(source: Path, target: Path) -> None:
    """A database that shares the immutable files of a snapshot (hard links), durable."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o700)
    for path in source.iterdir():
        # Table files never change once written; the others do, and a link would change the
        # snapshot.
        if path.suffix == ".sst":
            os.link(path, target / path.name)
        elif path.name != MANIFEST_NAME:
            shutil.copyfile(path, target / path.name)
    sync_tree(target)


class Store:
    """An open database. Raises StartupFailed when it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Held while `install` exchanges the database, so that readers of other threads never meet a
        # closed one.
        self._swap = threading.Lock()
        _finish_install(path)
        self._db = _open(path)

    def get(self, key: bytes) -> bytes | None:
        """Safe from any thread."""
        with self._swap:
            value: bytes | None = self._db.get(key)
        return value

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) of all keys with that prefix, in order. Raft thread only.

        Not by an upper bound in ReadOptions: rocksdict 0.3.29 keeps a pointer into options that
        are gone by the time of the first step, and then ends anywhere.
        """
        items: Any = self._db.items(from_key=prefix)
        for key, value in items:
            if not key.startswith(prefix):
                return
            yield key, value

    def first(self, prefix: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """The first keys with that prefix. Safe from any thread."""
        with self._swap:
            return list(itertools.islice(self.scan(prefix), count))

    def state(self) -> State:
        """The state row as it was stored last."""
        return decode_state(self.get(STATE_KEY))

    def write(self, writes: Mapping[bytes, bytes | None]) -> None:
        """All or nothing. Raises StorageFailed."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in writes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        try:
            self._db.write(batch)
        except Exception as error:  # rocksdict raises bare Exception
            raise StorageFailed(f"RocksDB refused a write: {error}") from error

    def checkpoint(self, path: Path) -> None:
        """A copy that shares files with this one (hard links). Not durable yet: `sync_tree`."""
        try:
            rocksdict.Checkpoint(self._db).create_checkpoint(str(path))
        except Exception as error:  # rocksdict raises bare Exception
            raise StorageFailed(f"RocksDB cannot make a checkpoint: {error}") from error

    def install(self, sink: SnapshotSink) -> None:
        """Hold what a received snapshot holds, and nothing else. Raises StorageFailed."""
        assert isinstance(sink, FolderSink)
        new, old = _beside(self.path, ".new"), _beside(self.path, ".old")
        try:
            copy_database(sink.path, new)
            with self._swap:
                self._db.close()
                self.path.rename(old)
                new.rename(self.path)
                sync_folder(self.path.parent)
                self._db = _open(self.path)
            shutil.rmtree(old, ignore_errors=True)
        except (OSError, StartupFailed) as error:
            raise StorageFailed(f"a snapshot cannot be installed: {error}") from error

    def close(self) -> None:
        """Sync and close the database; a second call does nothing."""
        with contextlib.suppress(rocksdict.DbClosedError):
            # An orderly stop needs no replay of the Raft log at the next start.
            self._db.flush_wal(True)
            self._db.close()


def _why_not_open(path: Path, error: str) -> str:
    if "lock" in error.lower():
        return f"{path} is in use by another process"
    return f"{path} cannot be opened: {error.splitlines()[0]}"
