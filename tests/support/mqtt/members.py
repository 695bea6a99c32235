"""Hubs of several nodes that share sessions, over one log and what homes have kept of sessions.

Each `Member` hears the log as far as it has come. `Members` is their homes, too: it grants every
claim, as `homes.table` would, and has the owner before let go or leaves it in the belief that the
session is its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from lakemq.broker_core.api.records.batch import encode as encode_batch
from lakemq.broker_core.api.records.batch import read_header
from lakemq.broker_core.api.types import ANONYMOUS, CommittedBatch, Offset, Placed
from lakemq.plugins.mqtt.homes import moving
from lakemq.plugins.mqtt.homes.frames import Asked, Saved
from lakemq.plugins.mqtt.homes.moving import Arriving
from lakemq.plugins.mqtt.routing.history import Reading, committed
from lakemq.plugins.mqtt.session.connecting import claimed
from lakemq.plugins.mqtt.state.snapshots import read_session
from lakemq.plugins.mqtt.wire.messages import Message
from lakemq.plugins.mqtt.wire.packets import NO_PROPERTIES, V311, Connack, Connect
from tests.support.mqtt.bench import Device
from tests.support.mqtt.crash import CrashBench

TOPIC = "mqtt"


class Member(CrashBench):
    """One node."""

    def __init__(self, members: Members, **options: Any) -> None:
        self.members = members
        self.heard = 0
        """Batches of the log that it has delivered."""
        super().__init__(**options)
        self.join()

    def join(self) -> None:
        """Begin at the log's end, with no sessions."""
        self.hub.ended = {}
        self.heard = len(self.members.log)
        self.hub.positions[TOPIC, 0] = self.members.end

    def write_records(self) -> None:
        for lane in self.hub.outbox.appends.take():
            base, count = self.members.end, len(lane.values)
            self.members.end += count
            data = encode_batch(lane.columns(), now_ms=self.now_ms, base_offset=base)
            self.members.log.append(CommittedBatch(TOPIC, 0, Offset(base), data))
            stored = Placed(0, Offset(base))
            self._unconfirmed.append(partial(lane.settle, range(count), stored, self.now_ms))

    def hear(self) -> None:
        """Deliver the next batch."""
        if self.heard == len(self.members.log):
            return
        batch = self.members.log[self.heard]
        self.heard += 1
        for message, meta in self._reader.read(batch):
            assert message.place is not None
            self.members.messages[message.place] = message
            self.hub.note_stored(message, meta)
            self.hub.route(message, self.now_ms)
            committed(self.hub.histories, message, self.now_ms)
            self.hub.delivered += 1
        self.hub.positions[TOPIC, 0] = read_header(batch.data).last_offset + 1

    def write_sessions(self) -> None:
        ledger = self.hub.ledger
        assert ledger is not None
        if not ledger.due:
            return
        rows = [moving.saved(self.hub, each, 1) for each in ledger.begin().client_ids]
        saved = [one for one in rows if one is not None and self.members.keep(one)]
        self._unconfirmed.append(partial(self._kept, saved))

    def _kept(self, rows: list[Saved]) -> None:
        hub = self.hub
        assert hub.ledger is not None
        for one in rows:
            session = hub.sessions.get(one.client_id)
            stale = self.members.epochs[one.client_id] != one.epoch
            if stale and session is not None and session.epoch == one.epoch:
                moving.lose(hub, session, self.now_ms)
        hub.ledger.done({one.client_id for one in rows}, hub.delivered, self.now_ms)

    def load(self) -> None:
        """As `Bench.load`; what waits for the node to come further is asked for again later."""
        self.load_messages()
        for _ in range(len(self.hub.outbox.reads)):
            finish = self.begin_read()
            assert finish is not None
            finish()

    def load_messages(self) -> None:
        self.messages = self.members.messages
        super().load_messages()

    def _fetch(self, reading: Reading, topic: str, offset: int) -> tuple[Iterator[Message], int]:
        batches = [
            one
            for one in self.members.log[: self.heard]
            if read_header(one.data).last_offset >= offset
        ][:3]
        behind = read_header(batches[-1].data).last_offset + 1 if batches else offset
        return self._messages(reading, batches), behind

    def _messages(self, reading: Reading, batches: list[CommittedBatch]) -> Iterator[Message]:
        for batch in batches:
            for message, meta in self._reader.read(batch):
                assert message.place is not None
                self.members.messages[message.place] = message
                reading.note(message, meta)
                yield message

    def crash(self) -> None:
        self.crashes += 1
        self._unconfirmed.clear()
        self.hub = self._new_hub()
        self._reader = type(self._reader)(self.hub.names)
        self.join()


class Members:
    """The nodes, and what they share. Looks like a `CrashBench` to its clients."""

    def __init__(self, seed: int, without: str = "", **options: Any) -> None:
        self.random = random.Random(seed)
        self.without = without
        """A rule that is taken away."""
        self.log: list[CommittedBatch] = []
        self.end = 0
        self.messages: dict[Any, Message] = {}
        self.epochs: dict[str, int] = {}
        self.owners: dict[str, Member] = {}
        self.records: dict[str, bytes] = {}
        self.handed = self.taken_from_records = 0
        self.nodes = [Member(self, **options) for _ in range(3)]

    @property
    def one(self) -> Member:
        return self.random.choice(self.nodes)

    def keep(self, row: Saved) -> bool:
        """What the home does with a write: it counts if the epoch is the newest."""
        if self.epochs.get(row.client_id) == row.epoch or self.without == "epochs":
            if row.state is None:
                self.records.pop(row.client_id, None)
            else:
                self.records[row.client_id] = row.state
        return True

    def settle(self) -> None:
        for node in self.nodes:
            node.settle_sessions()
            while node.heard < len(self.log):
                node.hear()
            node.settle_sessions()
            node.load()

    # -- claims

    def connect(self, client_id: str, **options: Any) -> Device:
        """Connect to any node; returns when CONNACK is there."""
        node = self.one
        device = node.dial(options.get("version", V311))
        device.send(
            Connect(
                client_id,
                device.version,
                options.get("clean", True),
                will=options.get("will"),
                properties=options.get("properties", NO_PROPERTIES),
            )
        )
        device.connection.authenticated(ANONYMOUS, node.now_ms)
        assert node.hub.outbox.claims.pop() is device.connection
        self._grant(client_id, node, device)
        for _ in range(5000):
            if device.connection.out:
                break
            assert not device.closed, device.connection.closing
            self.random.choice((node.hear, node.load, node.write_sessions, node.confirm_one))()
        assert device.connection.out, f"{client_id} gets no CONNACK"
        (device.connack,) = device._decoder.feed(device.connection.out.pop(0))  # type: ignore[attr-defined]
        assert isinstance(device.connack, Connack)  # type: ignore[attr-defined]
        return device

    def _grant(self, client_id: str, node: Member, device: Device) -> None:
        before, owner = self.epochs.get(client_id, 0), self.owners.get(client_id)
        kept = client_id in self.records
        epoch = self.epochs[client_id] = before + 1
        self.owners[client_id] = node
        ready = partial(claimed, device.connection, epoch, kept)
        local = node.hub.sessions.get(client_id)
        if owner is node and local is not None:
            local.epoch = epoch
            ready(node.now_ms)
            return
        if local is not None:
            moving.lose(node.hub, local, node.now_ms)
        state = None
        if owner is not None:
            # What one that does not answer has taken may be stored later, and twice then: the
            # price that decision 34 names.
            owner.write_records()
        if owner is not None and self.random.random() < 0.7:
            state = self._let_go(owner, Asked(client_id, before, False))
        unclean = state is None
        if unclean:
            state = self.records.get(client_id)
            self.taken_from_records += state is not None
        else:
            self.handed += 1
        if state is None:
            ready(node.now_ms)
            return
        found = read_session(client_id, state)
        if self.without == "positions":
            found.positions = dict(node.hub.positions)
        at_least = {(TOPIC, 0): self.end} if unclean and self.without != "ends" else {}
        arriving = [Arriving(found, epoch, unclean, ends=False)]
        moving.take_over(node.hub, arriving, ready, at_least, node.now_ms)

    def _let_go(self, owner: Member, asked: Asked) -> bytes | None:
        session = moving.part(owner.hub, asked, owner.now_ms)
        while session is not None and not moving.is_settled(session):
            owner.write_records()
            owner.confirm_one()
        return moving.hand_over(owner.hub, asked, session, owner.now_ms)
