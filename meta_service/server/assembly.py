"""Puts one member together and takes it apart: store, log, Raft thread, cache, watches.

Imported only when a member starts: it loads pysyncobj and RocksDB.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lakemq.meta_service.api.errors import (
    MetaError,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    StartupFailed,
)
from lakemq.meta_service.api.hosts import join_host
from lakemq.meta_service.catalog.command_codec import FEATURE_LEVEL
from lakemq.meta_service.catalog.commands import SetClusterId
from lakemq.meta_service.catalog.results import value_of
from lakemq.meta_service.catalog.tables import (
    CLUSTER_KEY,
    KEYS,
    Row,
    State,
    decode_events,
    decode_row,
    event_key,
)
from lakemq.meta_service.control.controller import Controller
from lakemq.meta_service.core.cache import Cache
from lakemq.meta_service.core.gateway import Gateway
from lakemq.meta_service.core.loop_queue import LoopQueue
from lakemq.meta_service.core.watches import Events, WatchHub
from lakemq.meta_service.raft.log.files import Folder
from lakemq.meta_service.raft.log.log_format import LogDamaged
from lakemq.meta_service.raft.log.raft_log import LogFailed, RaftLog, reconcile
from lakemq.meta_service.raft.membership import Group, decode_group
from lakemq.meta_service.raft.node import RaftNode
from lakemq.meta_service.raft.state import Message, RaftTiming
from lakemq.meta_service.raft.thread import RaftThread
from lakemq.meta_service.raft.thread_queue import ThreadQueue
from lakemq.meta_service.raft.transport import Identity, SocketWire
from lakemq.meta_service.raft.wire.sockets import Pem
from lakemq.meta_service.storage.first_group import read_first_group, write_first_group
from lakemq.meta_service.storage.machine import StateMachine
from lakemq.meta_service.storage.snapshots import SnapshotMaker, list_snapshots
from lakemq.meta_service.storage.store import Store, copy_database

_POLL_S: Final = 0.005


class NoWire:
    """The wire of a member that is alone."""

    def send(self, peer: str, message: Message) -> None:
        """Raises AssertionError: there are no others to send to."""
        raise AssertionError(f"a member without others sent {message['type']} to {peer}")

    def set_peers(self, addresses: Mapping[str, str]) -> None:
        """Raises AssertionError unless the group stays without others."""
        if addresses:
            raise AssertionError("a member without a wire cannot have others")

    def close(self) -> None:
        """Nothing to close."""


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
    # The store does not sync its writes: after a crash it may lack what the log no longer holds,
    # and a durable snapshot has.
    if store.state().applied_index >= log_first_index or log_first_index == 1:
        return store
    store.close()
    snapshots = list_snapshots(folder)
    if not snapshots or snapshots[-1].log_index < log_first_index:
        raise StartupFailed(
            f"{path} is behind the log, which begins at index {log_first_index}, and there is no "
            "snapshot to make up for it; restore this member from a backup"
        )
    # The snapshot is durable and newer, and the log has everything behind it.
    shutil.rmtree(path)
    copy_database(snapshots[-1].path, path)
    return Store(path)


@dataclass(frozen=True, slots=True)
class Membership:
    """Who is in the Raft group, and how its members reach each other."""

    node_id: str
    peers: Mapping[str, str] = field(default_factory=dict)
    """The other members: id -> `host:raft_port`."""
    host: str = "127.0.0.1"
    raft_port: int = 0
    pem: Pem | None = None
    own: str = ""
    """`host:raft_port` under which the others reach this member; empty: it is alone for good, or
    joins and is reached where it listens."""
    joins: bool = False
    """With an empty disk it asks around for a group; until that adds it, it does not vote."""


class Assembly:
    """A running member without its API."""

    def __init__(
        self,
        folder: Path,
        membership: Membership,
        timing: RaftTiming,
        replace_after_s: float = 0.0,
    ) -> None:
        """Opens everything; blocks for some milliseconds. Raises StartupFailed."""
        self.folder = folder
        self.membership = membership
        self.api_address = ""
        self.loop_queue = LoopQueue(asyncio.get_running_loop())
        self.cache = Cache()
        self.hub = WatchHub(self._read_history)
        self.gateway = Gateway(self.loop_queue, self.cache, self.hub)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StartupFailed(f"{folder} cannot be made: {error.strerror}") from error
        self.log = open_log(folder)
        self.store = open_store(folder, self.log.first_index)
        try:
            self._open(timing, replace_after_s)
        except BaseException:
            self.store.close()
            raise

    def _open(self, timing: RaftTiming, replace_after_s: float) -> None:
        self.machine = StateMachine(self.store, self.gateway.on_applied, self._on_installed)
        # Before the node is made: it takes log and state to fit each other.
        reconcile(self.log, self.machine.applied_index, self.machine.applied_term)
        self.snapshots = SnapshotMaker(self.store, self.folder)
        self.thread_queue = ThreadQueue()
        membership = self.membership
        identity = Identity(
            membership.node_id, lambda: self.api_address, self.cluster_id, FEATURE_LEVEL
        )
        self.wire: SocketWire | None = None
        if membership.own or membership.joins:
            self.wire = SocketWire(identity, membership.peers, self.thread_queue, membership.pem)
        self.raft_address = membership.own
        self.node = RaftNode(
            membership.node_id,
            self._first_group(),
            log=self.log,
            machine=self.machine,
            wire=self.wire or NoWire(),
            snapshots=self.snapshots,
            timing=timing,
            poller=self.thread_queue,
        )
        self.gateway.attach(self.node, self.thread_queue)
        self.controller = Controller(
            self.gateway,
            self.store,
            self._feature_levels,
            replace_after_s=replace_after_s,
            member_id=membership.node_id,
        )
        self._warm()
        self.thread = RaftThread(self.node, self.thread_queue, self.gateway.on_failed)

    def _first_group(self) -> Group:
        """The group before any change: that of the settings, or the one it began with by joining.

        Raises StartupFailed.
        """
        membership = self.membership
        stored = read_first_group(self.folder)
        if stored is not None:
            group = stored
        # An empty group: without voters it can neither vote nor elect itself before it is let in.
        elif membership.joins and self.log.last_term == 0:
            group = Group({}, {})
        else:
            group = Group({membership.node_id: membership.own, **membership.peers}, {})
        changed = self.machine.group()
        others = {*(decode_group(changed) if changed is not None else group).voters}
        if self.wire is None and others - {membership.node_id}:
            raise StartupFailed(
                "this node is a member of a group: set meta.members or meta.join, so that it "
                "listens for the others"
            )
        return group

    @property
    def needs_group(self) -> bool:
        """Whether it has to ask a group to let it vote."""
        return self.membership.joins and not self.node.can_vote

    def begin_alone(self) -> None:
        """Found a group. Before `start`, on an empty disk."""
        self._begin(Group({self.membership.node_id: self.raft_address}, {}))

    def begin_with(self, members: Mapping[str, str]) -> None:
        """Wait to be let into a group of those. Before `start`."""
        self._begin(Group({}, {}))
        assert self.wire is not None
        self.wire.set_peers(
            {name: at for name, at in members.items() if name != self.membership.node_id}
        )

    def _begin(self, group: Group) -> None:
        if read_first_group(self.folder) is None:
            write_first_group(self.folder, group)
            self.node.begin(group)

    @property
    def has_begun(self) -> bool:
        """Whether this node ever joined or founded a group: it must not found another."""
        return read_first_group(self.folder) is not None or self.log.last_term > 0

    def listen(self, api_address: Callable[[str], str]) -> None:
        """Accept the other members. They learn where, and `api_address(raft_address)`: where
        clients reach this one. Raises StartupFailed."""
        if self.wire is not None:
            port = self.wire.bind(self.membership.host, self.membership.raft_port)
            self.raft_address = self.raft_address or join_host(self.membership.host, port)
        # Before any of them connects: it is told then, and never again.
        self.api_address = api_address(self.raft_address)
        if self.wire is not None:
            self.wire.on_message = self.node.on_message
            self.wire.on_connected = self._connected
            self.wire.on_disconnected = self.node.peer_disconnected
            self.wire.on_refused = self._refused
            self.wire.start()

    def _connected(self, member_id: str) -> None:
        """Raft thread."""
        self.node.peer_connected(member_id)
        self.loop_queue.call(self.controller.failure_detector.processes.member_reached, member_id)

    def _refused(self, member_id: str) -> None:
        """Raft thread: its link broke off, and no process listens at its address."""
        self.node.peer_refused(member_id)
        processes = self.controller.failure_detector.processes
        self.loop_queue.call(processes.member_lost, member_id, time.monotonic())

    def _feature_levels(self) -> tuple[int, int]:
        """(the cluster's feature level, the highest that all members are known to know)."""
        level = self.machine.state.feature_level
        group = self.node.group
        others = {*group.voters, *group.learners} - {self.membership.node_id}
        known = [self.wire.feature_level(other) for other in others] if self.wire else []
        return level, min([FEATURE_LEVEL, *known])

    def cluster_id(self) -> str:
        """Empty while there is none."""
        stored = self.store.get(CLUSTER_KEY)
        return stored.decode() if stored is not None else ""

    def leader(self) -> tuple[str, str]:
        """(id, API address) of the leader as far as this member knows; empty: not known."""
        leader = self.node.leader
        if leader is None:
            return "", ""
        if leader.id == self.membership.node_id:
            return str(leader.id), ""
        return str(leader.id), self.wire.api_address(leader.id) if self.wire else ""

    def lag(self) -> int:
        """Entries of the slowest member behind this leader's log; 0 elsewhere."""
        node = self.node
        if not node.is_leader:
            return 0
        last = self.log.last_index
        return max((last - index for index in list(node.match_index.values())), default=0)

    def detail(self) -> dict[str, str | int]:
        """Figures for `status`."""
        node, state = self.node, self.machine.state
        return {
            "digest": state.digest.hex(),
            "state_index": state.applied_index,
            "feature_level": state.feature_level,
            "log_bytes": self.log.size_bytes,
            "log_first_index": self.log.first_index,
            "snapshots_installed": node.snapshots_installed,
            "elections": node.elections,
            "learners": ", ".join(node.group.learners),
            "catching_up": int(self.log.is_new),
        }

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
        # Read here, in the thread that alone writes to the store, and handed over in the order of
        # commands.
        self.loop_queue.call(self._load, self._stored_rows(), self.store.state())

    def _read_history(self, first: int, count: int) -> list[tuple[int, Events]]:
        history: list[tuple[int, Events]] = []
        for revision in range(first, min(first + count, self.hub.revision + 1)):
            data = self.store.get(event_key(revision))
            if data is None:
                break
            history.append((revision, decode_events(data)))
        return history

    async def start(self, wait_s: float) -> str:
        """Behind `listen`: start ticking; returns the cluster id once there is a leader.

        Raises StartupFailed.
        """
        self.thread.start()
        deadline = time.monotonic() + wait_s
        while not await self._is_ready():
            self._raise_if_removed()
            if time.monotonic() > deadline:
                raise StartupFailed(
                    f"no majority of the {len(self.node.group.voters)} members answered in "
                    f"{wait_s:g} s: {self.wire.why_unreachable() if self.wire else 'no leader'}"
                )
            await asyncio.sleep(_POLL_S)
        return self.cluster_id()

    def _raise_if_removed(self) -> None:
        """Raise StartupFailed if most others say that this member, which votes as far as it knows,
        is none. One of them alone may lag behind the entry that added it."""
        voters, own = self.node.group.voters, self.membership.node_id
        if self.wire is None or own not in voters:
            return
        others = [each for each in voters if each != own]
        saying = [each for each in others if each in self.wire.unknown_to]
        if 2 * len(saying) > len(others):
            raise StartupFailed(
                f"{own!r} is not a member any more, say {', '.join(saying)}: it was removed or "
                f"decommissioned. To let it come back as a new one, move {self.folder.parent} away "
                "and start it with an empty folder and meta.join (lakemq start --join HOST:PORT)"
            )

    async def _is_ready(self) -> bool:
        """Whether there is a leader and the cluster has its id."""
        try:
            await self.gateway.barrier()
            if not self.cluster_id():
                value_of(await self.gateway.propose(SetClusterId(uuid.uuid4().hex)))
        except NotLeader:
            # Another member leads: the id comes to this one through the log.
            return bool(self.cluster_id())
        except (NoLeader, OutcomeUnknown):
            return False
        return True

    async def give_way(self, wait_s: float) -> None:
        """Transfer leadership, so that the others need not detect that the leader is gone."""
        deadline = time.monotonic() + wait_s
        with contextlib.suppress(MetaError):
            asked = self.gateway.leading_term() is not None and await self.gateway.run(
                lambda node: node.transfer_leadership(None)
            )
            while asked:
                if not self.node.is_leader or time.monotonic() > deadline:
                    return
                await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Stop the controller, then the Raft thread, then the store that it writes to."""
        await self.controller.stop()
        await asyncio.to_thread(self._stop)
        # What the thread handed over last is still answered; whatever waits behind it fails.
        self.loop_queue.drain()
        self.gateway.fail(NoLeader("this member has stopped"))

    def _stop(self) -> None:
        self.thread.stop()
        self.snapshots.close()
        self.store.close()
