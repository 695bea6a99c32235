"""Puts one member together and takes it apart: store, log, Raft thread, cache, watches.

Imported only when a member starts: it loads pysyncobj and RocksDB.
"""

from __future__ import annotations

import asyncio
import shutil
import time
import uuid
from pathlib import Path
from typing import Final

from meta_service.api.errors import NoLeader, StartupFailed
from meta_service.catalog.commands import SetClusterId
from meta_service.catalog.results import value_of
from meta_service.catalog.tables import (
    CLUSTER_KEY,
    KEYS,
    Row,
    State,
    decode_events,
    decode_row,
    event_key,
)
from meta_service.core.bridge import Bridge
from meta_service.core.cache import Cache
from meta_service.core.gateway import Gateway
from meta_service.core.watches import Events, WatchHub
from meta_service.raft.files import Folder
from meta_service.raft.log import LogFailed, RaftLog, reconcile
from meta_service.raft.log_format import LogDamaged
from meta_service.raft.mailbox import Mailbox
from meta_service.raft.node import RaftNode
from meta_service.raft.state import Message, RaftTiming
from meta_service.raft.thread import RaftThread
from meta_service.storage.machine import StateMachine
from meta_service.storage.snapshots import SnapshotMaker, list_snapshots
from meta_service.storage.store import Store, copy_database

_READY_S_MAX: Final = 10.0


class NoWire:
    """The wire of a member that is alone."""

    def send(self, peer: str, message: Message) -> None:
        raise AssertionError(f"a member without others sent {message['type']} to {peer}")

    def close(self) -> None:
        pass


def open_log(folder: Path) -> RaftLog:
    """Raises StartupFailed."""
    try:
        return RaftLog(Folder(folder))
    except LogDamaged as error:
        raise StartupFailed(
            f"{folder}: {error}; restore this member from a backup or from the other members"
        ) from error
    except (OSError, LogFailed) as error:
        raise StartupFailed(f"{folder} cannot be used: {error}") from error


def open_store(folder: Path, log_first_index: int) -> Store:
    """The live store; if it lags behind the log's beginning, the newest snapshot in its place."""
    path = folder / "store"
    store = Store(path)
    if store.state().applied_index >= log_first_index or log_first_index == 1:
        return store
    store.close()
    snapshots = list_snapshots(folder)
    if not snapshots or snapshots[-1].log_index < log_first_index:
        raise StartupFailed(
            f"{path} is behind the log, which begins at index {log_first_index}, and there is no "
            "snapshot to make up for it; restore this member from a backup"
        )
    shutil.rmtree(path)
    copy_database(snapshots[-1].path, path)
    return Store(path)


class Assembly:
    """A running member without its sockets."""

    def __init__(self, folder: Path, node_id: str, timing: RaftTiming) -> None:
        """Opens everything; blocks for some milliseconds. Raises StartupFailed."""
        self.folder = folder
        self.bridge = Bridge(asyncio.get_running_loop())
        self.cache = Cache()
        self.hub = WatchHub(self._read_history)
        self.gateway = Gateway(self.bridge, self.cache, self.hub)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StartupFailed(f"{folder} cannot be made: {error.strerror}") from error
        self.log = open_log(folder)
        self.store = open_store(folder, self.log.first_index)
        try:
            self._open(node_id, timing)
        except BaseException:
            self.store.close()
            raise

    def _open(self, node_id: str, timing: RaftTiming) -> None:
        self.machine = StateMachine(self.store, self.gateway.on_applied, self._on_installed)
        reconcile(self.log, self.machine.applied_index, self.machine.applied_term)
        self.snapshots = SnapshotMaker(self.store, self.folder)
        self.mailbox = Mailbox()
        self.node = RaftNode(
            node_id,
            [],
            log=self.log,
            machine=self.machine,
            wire=NoWire(),
            snapshots=self.snapshots,
            timing=timing,
            poller=self.mailbox,
        )
        self.gateway.attach(self.node, self.mailbox)
        self._warm()
        self.thread = RaftThread(self.node, self.mailbox, self.gateway.on_failed)

    def _warm(self) -> None:
        state = self.store.state()
        self._load(self._stored_rows(), state)

    def _stored_rows(self) -> list[tuple[bytes, Row]]:
        return [(key[1:], decode_row(data)) for key, data in self.store.scan(KEYS)]

    def _load(self, rows: list[tuple[bytes, Row]], state: State) -> None:
        self.cache.load(rows, state.revision, state.applied_index)
        self.hub.start(state.revision, state.compact_revision)

    def _on_installed(self) -> None:
        """Raft thread: a snapshot took the place of the state."""
        self.bridge.call(self._load, self._stored_rows(), self.store.state())

    def _read_history(self, first: int, count: int) -> list[tuple[int, Events]]:
        history: list[tuple[int, Events]] = []
        for revision in range(first, min(first + count, self.hub.revision + 1)):
            data = self.store.get(event_key(revision))
            if data is None:
                break
            history.append((revision, decode_events(data)))
        return history

    async def start(self) -> str:
        """Start ticking; returns the cluster id once there is a leader. Raises StartupFailed."""
        self.thread.start()
        deadline = time.monotonic() + _READY_S_MAX
        while True:
            try:
                await self.gateway.barrier()
                break
            except NoLeader as error:
                if time.monotonic() > deadline:
                    raise StartupFailed("no leader was elected in time") from error
                await asyncio.sleep(0.005)
        stored = self.store.get(CLUSTER_KEY)
        if stored is not None:
            return stored.decode()
        result = await self.gateway.propose(SetClusterId(uuid.uuid4().hex))
        return str(value_of(result))

    async def stop(self) -> None:
        await asyncio.to_thread(self._stop)
        self.bridge.drain()
        self.gateway.fail(NoLeader("this member has stopped"))

    def _stop(self) -> None:
        self.thread.stop()
        self.snapshots.close()
        self.store.close()
