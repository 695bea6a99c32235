"""Backups: one file that holds the whole catalog, and a member's folder made from it.

File: the head (`api.backup_head`), then the data as `snapshot_stream` lays it out, whose manifest
has a SHA-256 for every file.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from lakemq.meta_service.api.backup_head import BackupNote, read_head
from lakemq.meta_service.api.errors import InvalidArgument, StorageFailed
from lakemq.meta_service.catalog.tables import CLUSTER_KEY, GROUP_KEY
from lakemq.meta_service.raft.log.files import Folder
from lakemq.meta_service.raft.log.raft_log import RaftLog
from lakemq.meta_service.storage.snapshot_stream import FolderSink
from lakemq.meta_service.storage.store import Store, copy_database

_CHUNK_BYTES: Final = 1024 * 1024
_CHECK_S: Final = 0.01


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


def restore(backup: Path, folder: Path, cluster_id: str = "") -> str:
    """Make a member's folder from a backup; returns the new cluster id.

    All members of a group are restored from the same file with the same new id, so that no member
    of the old cluster can join by mistake. Raises InvalidArgument or StorageFailed, and then leaves
    no usable folder behind.
    """
    cluster_id = cluster_id or uuid.uuid4().hex
    if folder.exists() and any(folder.iterdir()):
        raise InvalidArgument(f"{folder} is not empty: a restore never overwrites")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with backup.open("rb") as file:
        note = read_head(file)
        sink = FolderSink(
            folder / "restore.partial",
            folder / "restored",
            note.log_index,
            note.term,
            note.size,
        )
        for chunk in _chunks(file):
            sink.write(chunk)
    if sink.position != note.size or not _is_sealed(sink):
        sink.discard()
        raise InvalidArgument(f"{backup} is damaged or cut short")
    _install(folder, sink, cluster_id)
    return cluster_id


def verify(backup: Path) -> BackupNote:
    """Restore it to a temporary folder, which takes as much room as the file: its note. Raises as
    `restore` does."""
    with tempfile.TemporaryDirectory(prefix="lakemq-verify-") as folder:
        restore(backup, Path(folder) / "meta")
    with backup.open("rb") as file:
        return read_head(file)


def _is_sealed(sink: FolderSink) -> bool:
    sink.seal()
    while (good := sink.sealed()) is None:
        time.sleep(_CHECK_S)
    return good


def _install(folder: Path, sink: FolderSink, cluster_id: str) -> None:
    copy_database(sink.path, folder / "store")
    store = Store(folder / "store")
    try:
        if store.state().applied_index != sink.log_index:
            raise StorageFailed("the backup's state is not at the index that its head names")
        # The old group is gone: the new one is that of the settings.
        store.write({CLUSTER_KEY: cluster_id.encode(), GROUP_KEY: None})
    finally:
        store.close()
    # The store was copied by hard links, so the snapshot may serve as this member's newest one.
    sink.path.rename(folder / f"snapshot-{sink.log_index:020d}-{sink.term:020d}")
    log = RaftLog(Folder(folder))
    log.setCurrentTerm(sink.term, None)
    log.reset(sink.log_index, sink.term)
    # A restored member has no earlier life in the new cluster, so it has promised nothing there.
    log.settle()
    log.close()
