"""Durable snapshots of the store: RocksDB checkpoints, made in the background.

A snapshot is a folder `snapshot-<log index>-<term>`. It exists under that name only when every byte
of it is on the disk; only then may the log be shortened.
"""

from __future__ import annotations

import logging
import queue
import re
import shutil
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

from lakemq.meta_service.api.errors import StorageFailed
from lakemq.meta_service.raft.log.files import sync_folder, sync_tree
from lakemq.meta_service.storage.snapshot_stream import FolderSink, FolderSource, write_manifest
from lakemq.meta_service.storage.store import Store

LOG: Final = logging.getLogger(__name__)
_NAME: Final = re.compile(r"snapshot-(\d{20})-(\d{20})")
_PARTIAL: Final = "snapshot.partial"
_INCOMING: Final = "incoming.partial"


class Snapshot(NamedTuple):
    """A durable snapshot: the state behind a log index."""

    log_index: int
    term: int
    path: Path


def list_snapshots(folder: Path) -> list[Snapshot]:
    """Durable snapshots, oldest first."""
    found = []
    for path in folder.glob("snapshot-*"):
        match = _NAME.fullmatch(path.name)
        if match:
            found.append(Snapshot(int(match[1]), int(match[2]), path))
    return sorted(found)


def snapshot_name(log_index: int, term: int) -> str:
    """The folder's name; zero-padded, so that names sort by log index."""
    return f"snapshot-{log_index:020d}-{term:020d}"


class SnapshotMaker:
    """`begin` and `finished` are called by the Raft thread; a worker waits for the disk."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._done: queue.SimpleQueue[int | OSError] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._last_index = max((s.log_index for s in list_snapshots(folder)), default=0)
        shutil.rmtree(folder / _PARTIAL, ignore_errors=True)
        shutil.rmtree(folder / _INCOMING, ignore_errors=True)

    def begin(self) -> bool:
        """Take a checkpoint now (milliseconds), make it durable in the background."""
        state = self._store.state()
        if self._worker is not None or state.applied_index <= self._last_index:
            return False
        partial = self._folder / _PARTIAL
        shutil.rmtree(partial, ignore_errors=True)
        try:
            # In the Raft thread, between two batches, so that it is the state at exactly one log
            # index.
            self._store.checkpoint(partial)
        except StorageFailed as error:
            LOG.warning("no snapshot could be made, the log stays as long as it is: %s", error)
            return False
        name = snapshot_name(state.applied_index, state.applied_term)
        self._worker = threading.Thread(
            target=self._make_durable,
            args=(partial, self._folder / name, state.applied_index),
            name="meta-snapshot",
            daemon=True,
        )
        self._worker.start()
        return True

    def _make_durable(self, partial: Path, path: Path, index: int) -> None:
        try:
            # Hashed before the rename: the manifest of a named snapshot is there and right.
            write_manifest(partial)
            sync_tree(partial)
            partial.rename(path)
            sync_folder(self._folder)
            for old in list_snapshots(self._folder):
                # Only now, when a newer one is durable: the log has been shortened up to the old
                # one.
                if old.log_index < index:
                    shutil.rmtree(old.path, ignore_errors=True)
            self._done.put(index)
        except OSError as error:
            self._done.put(error)

    def finished(self) -> int | None:
        """Index of a snapshot that became durable since the last call."""
        if self._worker is None or self._done.empty():
            return None
        outcome = self._done.get()
        self._worker.join()
        self._worker = None
        if isinstance(outcome, OSError):
            LOG.warning("no snapshot could be made, the log stays as long as it is: %s", outcome)
            return None
        self._last_index = outcome
        return outcome

    def newest(self) -> Snapshot | None:
        """Safe from any thread."""
        snapshots = list_snapshots(self._folder)
        return snapshots[-1] if snapshots else None

    def age_s(self) -> float:
        """Of the newest snapshot (s); -1: there is none."""
        newest = self.newest()
        return time.time_ns() / 1e9 - newest.path.stat().st_mtime if newest else -1.0

    def open_newest(self) -> FolderSource | None:
        """The newest durable snapshot, to be sent."""
        newest = self.newest()
        if newest is None:
            return None
        return FolderSource(newest.path, newest.log_index, newest.term)

    def receive(self, log_index: int, term: int, size: int) -> FolderSink:
        """Begin to take a snapshot of another member; what was half received before is deleted."""
        target = self._folder / snapshot_name(log_index, term)
        return FolderSink(self._folder / _INCOMING, target, log_index, term, size)

    def close(self) -> None:
        """Wait for the snapshot that is being made."""
        if self._worker is not None:
            self._worker.join()
